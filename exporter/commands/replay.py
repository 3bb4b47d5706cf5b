"""`rankskew replay`: judge recorded traces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from exporter.bundle import bundled
from exporter.commands.arguments import Parser, interval, positive
from exporter.replay.progress import ProgressLine
from exporter.replay.promtool import rule_files
from exporter.replay.replay import Replay, as_json, replay
from exporter.replay.report import report
from exporter.replay.traces import Run, read_traces

SHIPPED: Final = object()


EXAMPLES: Final = """\
rankskew replay /scratch/trace
rankskew replay /scratch/trace --json | jq '.jobs[].findings'
rankskew replay /scratch/trace --scrape-interval 5s --rules"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew replay",
        description="Judge recorded traces as the join judges a running job, and print each "
        "finding: rank, stage, kind, onset, end, GPUs lost. The slowdown is the time of the run "
        "divided by the time it would have taken with every named rank as fast as its peers and "
        "the same communication.",
        examples=EXAMPLES,
    )
    options.add_argument("path", type=Path, nargs="+", help="a CSV file, or a directory of them")
    options.add_argument(
        "--time-scale",
        metavar="K",
        type=positive,
        default=1.0,
        help="make the clock and every stage K times slower, for traces of only a few seconds "
        "(default: 1)",
    )
    options.add_argument(
        "--rules",
        metavar="DIR",
        type=Path,
        nargs="?",
        const=SHIPPED,
        help="also evaluate alert rules on the verdicts, with promtool, and list the alerts that "
        "fire: the rules in DIR, or the shipped rules if --rules is the last argument",
    )
    options.add_argument(
        "--scrape-interval",
        metavar="DURATION",
        type=interval,
        default="15s",
        help="how often the ranks are scraped and the rules evaluated (default: %(default)s)",
    )
    options.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="json prints one document, which docs/replay.md describes (default: text)",
    )
    options.add_argument(
        "--json",
        dest="format",
        action="store_const",
        const="json",
        help="the same as --format json",
    )
    return options


def run(arguments: Sequence[str]) -> int:
    """Judge recorded traces, and account for the time lost to waiting."""
    options = parser().parse_args(arguments)
    rules = None
    if options.rules is not None:
        shipped = options.rules is SHIPPED
        rules = rule_files(bundled("alerts/rules") if shipped else options.rules)
    replays = [
        _replay(run, options.time_scale, rules, options.scrape_interval)
        for run in read_traces(options.path)
    ]
    print(as_json(replays) if options.format == "json" else report(replays))
    return 0


def _replay(
    run: Run, scale: float, rules: Sequence[Path] | None, interval_seconds: float
) -> Replay:
    progress = ProgressLine(f"judging job {run.job_id}")
    try:
        return replay(run, scale, rules, interval_seconds, progress)
    finally:
        progress.clear()
