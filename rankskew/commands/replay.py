"""`rankskew replay`: judge recorded traces."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console

from exporter.commands.arguments import Parser, add_json, time_scale
from exporter.errors import FAILED
from rank_probe.judge.verdict import DUTY, MILD
from rank_probe.wire.document import as_document
from rankskew.render import render
from rankskew.replay.replay import ReplayedJobs, in_words, replay
from rankskew.replay.traces import read_traces

EXAMPLES: Final = """\
rankskew replay /scratch/trace
rankskew replay /scratch/trace --time-scale 25
rankskew replay /scratch/trace --json | jq '.jobs[].findings'"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew replay",
        description="Judge recorded traces as the join judges a running job, and print each "
        "finding: rank, stage, kind, onset, end, GPUs lost. The slowdown is the time of the run "
        "divided by the time it would have taken with every named rank as fast as its peers and "
        "the same communication. Without measured waits, each rank is compared with its own past. "
        "Traces of 14 to 59 steps can be judged only in part, and the output says so.",
        epilog="The status is 0 if nothing is found, 1 if a rank is late or a loss is found, and 2 "
        "if it cannot tell. Ranks that are only a little late, or on duty, do not count.",
        examples=EXAMPLES,
    )
    options.add_argument("path", type=Path, nargs="+", help="a CSV file, or a directory of them")
    options.add_argument(
        "--time-scale",
        metavar="K",
        type=time_scale,
        default=1.0,
        help="make the clock and every stage K times slower, for traces of only a few seconds "
        "(default: 1)",
    )
    add_json(options, "jobs with findings and losses; docs/replay.md describes it")
    return options


def run(arguments: Sequence[str]) -> int:
    """Judge recorded traces, and account for the time lost to waiting."""
    options = parser().parse_args(arguments)
    runs = read_traces(options.path)
    # On a terminal only; it takes seconds.
    with Console(stderr=True).status("judging"):
        replays = [replay(run, options.time_scale) for run in runs]
    texts = map(render, map(in_words, replays))
    as_json = as_document("replay", asdict(ReplayedJobs(replays)))
    print(as_json if options.json else "\n\n".join(texts))
    if any(finding.kind not in (MILD, DUTY) for one in replays for finding in one.findings):
        return 1
    return FAILED if any(one.not_judgeable for one in replays) else 0
