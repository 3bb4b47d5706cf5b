"""The judge's verdicts on planted faults in real ranks: is rank, stage and cost right?

Real gloo ranks train one segment after the other, each with its own fault. Their probes record
every step, and the findings of `rankskew replay` on these traces are compared with the faults.

    python -m benchmarks.accuracy [--ranks 4] [--ways ddp] [--seeds 1] [--faults data] [--sizes 10]

For the way `join`, 64 simulated ranks use the real join instead; see joined.py.

Recorded traces stay in .accuracy and are not recorded again. So a grid can be run in pieces, and
judged again after the judge has changed. New results are merged into results/accuracy.json.
"""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accuracy import joined
from benchmarks.accuracy.plan import FAULTS, JOIN, RANKS, SEEDS, SIZES, WAYS, Segment, grid
from benchmarks.accuracy.score import faults_table, is_miss, score, summary, together_table
from benchmarks.accuracy.trace import (
    REPLAYED_STEP_SECONDS,
    TRACES,
    TraceError,
    commit,
    record_missing,
    recorded_truth,
    timed,
)
from benchmarks.report import RESULTS, Row, show, write_tables
from exporter.errors import UsageError
from rankskew.replay.replay import replay as replay_run
from rankskew.replay.traces import read_traces

RESULT = RESULTS / "accuracy.json"


def replay(path: Path, scale: float) -> dict[str, Any]:
    """Return the output of `rankskew replay --json` for the trace *path*."""
    try:
        return {"jobs": [asdict(replay_run(run, scale)) for run in read_traces([path])]}
    except UsageError as error:
        raise TraceError(f"rankskew replay failed: {error}") from error


def judge(segment: Segment, traces: Path) -> Row:
    """Return the row of a *segment*, recorded or simulated."""
    if segment.way == JOIN:
        return joined.judge(segment) | {"recorded": commit(), "judged": commit()}
    path = traces / f"{segment.key}.csv"
    notes = json.loads((traces / f"{segment.key}.json").read_text())
    true = recorded_truth(segment, traces)
    scale = REPLAYED_STEP_SECONDS / true.healthy_step_seconds
    (said,) = replay(path, scale)["jobs"]
    return score(segment, true, said, scale) | {"recorded": notes["commit"], "judged": commit()}


def store(rows: Sequence[Row], result: Path) -> None:
    """Merge *rows* into the *result*, in the order of the grid."""
    before = json.loads(result.read_text())["rows"] if result.exists() else []
    kept = {row["key"]: row for row in [*before, *rows]}
    order = {segment.key: i for i, segment in enumerate(s for job in grid() for s in job)}
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    machine["torch"] = importlib.metadata.version("torch")
    found = sorted(kept.values(), key=lambda row: order.get(row["key"], len(order)))
    made = {"machine": machine, "rows": found}
    result.write_text(json.dumps(made, indent=1) + "\n")
    if result == RESULT:
        write_tables(made, {"accuracy": faults_table, "accuracy_together": together_table})


def tell(rows: Sequence[Row]) -> None:
    """Print the summary of *rows*, and every miss."""
    show(summary(rows, ("way", "fault", "size")))
    for row in filter(is_miss, rows):
        print(f"\nMISS {row['key']}: planted {row['truth']['size']:.1%}, begins at ", end="")
        print(f"{row['truth']['begin_seconds'] * row['time scale']:.0f} s; said, right: ", end="")
        print(f"{row['said']}, false: {row['false']}, also: {row['also said']}, ", end="")
        print(f"source {row['source']}, not judgeable: {row['not judgeable']}")


def work(
    jobs: Iterator[list[Segment]], traces: Path, result: Path, *, only_judge: bool
) -> list[Row]:
    """Record what *traces* lacks, judge all, store progress in *result*; return the rows."""
    rows: list[Row] = []
    for segments in jobs:
        real = [one for one in segments if one.way != JOIN]
        if not only_judge:
            record_missing(real, traces)
        recorded = [one for one in real if (traces / f"{one.key}.json").exists()]
        recorded += [one for one in segments if one.way == JOIN]
        with timed(f"judged {len(recorded)}"):
            of_job = [judge(segment, traces) for segment in recorded]
        store(of_job, result)
        rows += of_job
    return rows


def main() -> None:
    """Record, judge, print."""
    parser = argparse.ArgumentParser(description="Does the judge name the planted straggler?")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    sizes = [100 * size for size in SIZES]
    parser.add_argument("--sizes", nargs="+", type=float, default=sizes, help="percent of a step")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces are kept")
    parser.add_argument("--judge", action="store_true", help="judge what is recorded, no more")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the rows are kept")
    options = parser.parse_args()
    percent = [round(size / 100, 4) for size in options.sizes]
    jobs = grid(options.ways, options.ranks, options.seeds, options.faults, percent)
    rows = work(jobs, options.traces, options.result, only_judge=options.judge)
    if rows:
        tell(rows)


if __name__ == "__main__":
    main()
