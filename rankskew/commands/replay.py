"""`rankskew replay`: judge recorded traces."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO

from exporter.commands.arguments import Parser, add_json, time_scale
from exporter.errors import FAILED
from rank_probe.judge.verdict import DUTY, MILD
from rankskew.replay.replay import Replay, as_json, replay, report
from rankskew.replay.traces import Run, read_traces

# Shorter work needs no progress line.
QUIET_SECONDS: Final = 1.0
EVERY_SECONDS: Final = 0.2
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
        "Traces of 14 to 59 steps are judged as far as they reach, and that is said.",
        epilog="The status is 0 if no rank is late, 1 if one is, and 2 if that cannot be told.",
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
    replays = [_replay(run, options.time_scale) for run in read_traces(options.path)]
    print(as_json(replays) if options.json else report(replays))
    if any(finding.kind not in (MILD, DUTY) for one in replays for finding in one.findings):
        return 1
    return FAILED if any(one.not_judgeable for one in replays) else 0


def _replay(run: Run, scale: float) -> Replay:
    progress = ProgressLine(f"judging job {run.job_id}")
    try:
        return replay(run, scale, progress)
    finally:
        progress.clear()


class ProgressLine:
    """Overwrites its line with the finished share; silent unless the stream is a terminal."""

    def __init__(
        self, name: str, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._stream = sys.stderr if stream is None else stream
        self._is_watched = self._stream.isatty()
        self._now = now
        self._due = now() + QUIET_SECONDS
        self._width = 0

    def __call__(self, share: float) -> None:
        """Show this *share*, 0 to 1."""
        now = self._now()
        if self._is_watched and now >= self._due:
            self._due = now + EVERY_SECONDS
            self._write(f"{self._name}: {share:.0%}")

    def clear(self) -> None:
        """Erase the line."""
        if self._width:
            self._write("")
            self._stream.write("\r")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)
