"""The judge's verdicts on planted faults in real ranks: is rank, stage and cost right?

Real gloo ranks train one segment after the other, each with its own fault. Their probes record
every step, and the findings of `rankskew replay` on these traces are compared with the faults.

    python -m benchmarks.accuracy [--ranks 4] [--ways ddp] [--seeds 1] [--faults data] [--sizes 10]

Of the way `join`, 64 ranks are simulated at the real join instead; see joined.py.

Recorded traces stay in .accuracy and are not recorded again, so a grid can be done in pieces, and
judged again after the judge has changed. New results are merged into results/accuracy.json.
"""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy import joined, tables
from benchmarks.accuracy.plan import FAULTS, JOIN, RANKS, SEEDS, SIZES, WAYS, Segment, grid
from benchmarks.accuracy.record import REPLAYED_STEP_SECONDS, TRACES, commit, record_missing, timed
from benchmarks.accuracy.score import Row, is_miss, score, summary
from benchmarks.accuracy.trace import TraceError, recorded_truth
from benchmarks.report import RESULTS, show, write_tables
from exporter.errors import UsageError
from rankskew.replay.replay import job
from rankskew.replay.replay import replay as replay_run
from rankskew.replay.traces import read_traces

RESULT = RESULTS / "accuracy.json"


def replay(path: Path, scale: float) -> dict[str, Any]:
    """Return the output of `rankskew replay --json` for the trace *path*."""
    try:
        return {"jobs": [job(replay_run(run, scale)) for run in read_traces([path])]}
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


def stored(result: Path) -> dict[str, Row]:
    """Return the rows of the *result*, by key."""
    rows = json.loads(result.read_text())["rows"] if result.exists() else []
    return {row["key"]: row for row in rows}


def store(rows: Sequence[Row], result: Path) -> None:
    """Merge *rows* into the *result*, in the order of the grid."""
    merged = stored(result) | {row["key"]: row for row in rows}
    order = {segment.key: i for i, segment in enumerate(s for job in grid() for s in job)}
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    machine["torch"] = importlib.metadata.version("torch")
    found = sorted(merged.values(), key=lambda row: order.get(row["key"], len(order)))
    result.parent.mkdir(exist_ok=True)
    made = {"machine": machine, "rows": found}
    result.write_text(json.dumps(made, indent=1) + "\n")
    if result == RESULT:
        write_tables(made, {"accuracy": tables.faults, "accuracy_together": tables.together})


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
    parser.add_argument("--ways", type=_words(WAYS), default=WAYS)
    parser.add_argument("--ranks", type=_numbers, default=RANKS)
    parser.add_argument("--seeds", type=_numbers, default=SEEDS)
    parser.add_argument("--faults", type=_words(FAULTS), default=FAULTS)
    parser.add_argument("--sizes", type=_percents, default=SIZES, help="percent of a healthy step")
    parser.add_argument("--traces", type=Path, default=TRACES, help="where the traces are kept")
    parser.add_argument("--judge", action="store_true", help="judge what is recorded, no more")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the rows are kept")
    options = parser.parse_args()
    jobs = grid(options.ways, options.ranks, options.seeds, options.faults, options.sizes)
    rows = work(jobs, options.traces, options.result, only_judge=options.judge)
    if rows:
        tell(rows)


def _words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def words(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := [word for word in chosen if word not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return chosen

    return words


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _percents(text: str) -> list[float]:
    return [float(word) / 100 for word in text.split(",")]


if __name__ == "__main__":
    main()
