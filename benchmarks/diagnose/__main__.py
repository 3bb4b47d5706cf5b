"""Does `rankskew diagnose` name rank, stage, cause and a fitting first action for each fault?

The faults of `rankskew simulate`, on a real Prometheus with the shipped rules, and those of
`make bench-accuracy`, on traces that real gloo ranks have recorded. Each must also end with the
right exit status: 0 for a healthy job, 1 if something is found, 2 if it cannot be told.
Exits 1 if anything is wrong.

    python -m benchmarks.diagnose [--only tour|traces] [--ranks 4] [--sizes 25] [--interval 8]

Traces stay in .accuracy, as those of benchmarks.accuracy do, and are not recorded again.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.accuracy.plan import SINGLE, Segment, grid
from benchmarks.accuracy.record import REPLAYED_STEP_SECONDS, TRACES, record_missing
from benchmarks.accuracy.trace import recorded_truth
from benchmarks.diagnose.plan import CANNOT_TELL, Expected, of_segment
from benchmarks.diagnose.score import Row, is_right, score
from benchmarks.diagnose.tour import ask, tour
from benchmarks.report import last, write

FEW_STEPS: Final = 12


# ---- Recorded traces ---------------------------------------------------------------------------


def traces(ranks: Sequence[int], sizes: Sequence[float], folder: Path) -> Iterator[Row]:
    """Yield a row for each fault of the grid, recorded if need be, and for too short a trace."""
    for segments in grid(["ddp"], ranks, [1], SINGLE, sizes):
        record_missing(segments, folder)
        yield from (_of_trace(segment, folder) for segment in segments)
        yield _too_short(segments[0], folder)


def _of_trace(segment: Segment, folder: Path) -> Row:
    scale = REPLAYED_STEP_SECONDS / recorded_truth(segment, folder).healthy_step_seconds
    document = ask("--trace", f"{folder}/{segment.key}.csv", "--time-scale", f"{scale:.3f}")
    size = f" {segment.size:.0%}" if segment.size else ""
    name = f"{segment.fault}{size}, {segment.ranks} ranks"
    return score("trace", name, of_segment(segment), document)


def _too_short(segment: Segment, folder: Path) -> Row:
    lines = (folder / f"{segment.key}.csv").read_text().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "short.csv"
        path.write_text("".join(lines[: 1 + FEW_STEPS * segment.ranks]))
        document = ask("--trace", str(path))
    what = f"only {FEW_STEPS} steps, {segment.ranks} ranks"
    return score("trace", what, Expected(CANNOT_TELL, ("warming_up",)), document)


def _stored(measured: set[str]) -> list[Row]:
    """Return the rows of the last result whose source has not been *measured* again."""
    return [row for row in last("diagnose") if row["source"] not in measured]


def main() -> int:
    """Ask about every fault; exits 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description="Does diagnose name what was planted?")
    parser.add_argument("--only", choices=("tour", "traces"))
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--sizes", type=lambda text: [int(word) / 100 for word in text.split(",")])
    parser.add_argument("--interval", type=float, default=8.0, help="seconds between scrapes")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces are kept")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.only != "traces":
        rows += tour(options.interval)
    if options.only != "tour":
        rows += traces(options.ranks or (4, 2), options.sizes or (0.25,), options.traces)
    write("diagnose", [*_stored({row["source"] for row in rows}), *rows], ["torch"])
    return 0 if all(map(is_right, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
