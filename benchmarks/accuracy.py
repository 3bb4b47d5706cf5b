"""The judge's verdicts on planted faults in real ranks: is rank, stage and cost right?

Real gloo ranks train one segment after the other, each with its own fault. Their probes record
every step, and the findings of `rankskew replay` on these traces are compared with the faults.

    python -m benchmarks.accuracy [--ranks 4] [--ways ddp] [--seeds 1] [--faults data] [--sizes 10]

Recorded traces stay in .accuracy and are not recorded again, so a grid can be done in pieces, and
judged again after the judge has changed. New results are merged into results/accuracy.json.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.accuracy_plan import FAULTS, RANKS, SEEDS, SIZES, WAYS, Segment, grid
from benchmarks.accuracy_score import Row, is_miss, score, summary
from benchmarks.accuracy_trace import Delayed, TraceError, merge, read_rows, truth, write_rows
from benchmarks.report import RESULTS, show
from exporter.errors import UsageError
from rankskew.replay.replay import job
from rankskew.replay.replay import replay as replay_run
from rankskew.replay.traces import read_traces

ROOT = Path(__file__).parents[1]
TRACES = ROOT / ".accuracy"
RESULT = RESULTS / "accuracy.json"
# A step of a real training takes this long; a step here takes a thirtieth of it.
REPLAYED_STEP_SECONDS = 2.0

# Segments per launch: starting ranks takes 20 s, and an interruption loses a launch.
AT_ONCE = 12

# Takes a trace and a time scale, returns the output of `rankskew replay --format json`.
Replay = Callable[[Path, float], dict[str, Any]]


def record(segments: Sequence[Segment], traces: Path) -> None:
    """Train *segments*, all of one way and number of ranks, and keep their traces in *traces*."""
    first = segments[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        plan.write_text(json.dumps([segment.to_json() for segment in segments]))
        command = [sys.executable, "-m", "torch.distributed.run", "--log-dir", f"{folder}/torchrun"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command += ["--nproc-per-node", str(first.ranks), "-m", "benchmarks.accuracy_job"]
        log = folder / "log"
        with log.open("wb") as output:
            done = subprocess.run(
                [*command, str(plan), str(folder)],
                cwd=ROOT,
                env=os.environ
                | {
                    "OMP_NUM_THREADS": "1",
                    "RANK_PROBE_TRACE": f"{folder}/raw",
                    "RANKSKEW_EXPORTER": f"unix:{folder}/nobody",
                },
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode:
            raise TraceError(f"the ranks failed:\n{log.read_text()[-4000:]}")
        delayed = {
            rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(first.ranks)
        }
        for segment in segments:
            _keep(segment, folder / "raw", delayed, traces)


def _keep(
    segment: Segment, raw: Path, delayed: dict[int, dict[str, dict[str, float]]], traces: Path
) -> None:
    rows_of = {rank: _raw_rows(raw, segment, rank) for rank in range(segment.ranks)}
    write_rows(traces / f"{segment.key}.csv", merge(segment, rows_of))
    notes = {
        "segment": segment.to_json(),
        "commit": commit(),
        "delayed": {rank: of_rank[segment.key] for rank, of_rank in delayed.items()},
    }
    # Written last: a trace without notes is recorded again.
    (traces / f"{segment.key}.json").write_text(json.dumps(notes))


def _raw_rows(raw: Path, segment: Segment, rank: int) -> list[dict[str, str]]:
    path = raw / f"{segment.key}-0-{rank}.csv"
    return read_rows(path) if path.exists() else []


def replay(path: Path, scale: float) -> dict[str, Any]:
    """Return the output of `rankskew replay --format json` for the trace *path*."""
    try:
        return {"jobs": [job(replay_run(run, scale)) for run in read_traces([path])]}
    except UsageError as error:
        raise TraceError(f"rankskew replay failed: {error}") from error


def judge(segment: Segment, traces: Path, ask: Replay = replay) -> Row:
    """Return the row of a recorded *segment*."""
    path = traces / f"{segment.key}.csv"
    notes = json.loads((traces / f"{segment.key}.json").read_text())
    delayed: Delayed = {
        int(rank): {int(step): seconds for step, seconds in steps.items()}
        for rank, steps in notes["delayed"].items()
    }
    true = truth(segment, read_rows(path), delayed)
    scale = REPLAYED_STEP_SECONDS / true.healthy_step_seconds
    (said,) = ask(path, scale)["jobs"]
    return score(segment, true, said, scale) | {"recorded": notes["commit"], "judged": commit()}


def commit() -> str:
    """Return the commit of the checkout, with a plus if files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


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
    result.write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")


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
    traces.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for segments in jobs:
        new = [one for one in segments if not (traces / f"{one.key}.json").exists()]
        for start in range(0, 0 if only_judge else len(new), AT_ONCE):
            part = new[start : start + AT_ONCE]
            with _timed(f"recorded {part[0].key} to {part[-1].key}"):
                record(part, traces)
        recorded = [one for one in segments if (traces / f"{one.key}.json").exists()]
        with _timed(f"judged {len(recorded)}"):
            of_job = [judge(segment, traces) for segment in recorded]
        store(of_job, result)
        rows += of_job
    return rows


@contextmanager
def _timed(what: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"{what} in {time.monotonic() - started:.0f} s", flush=True)


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
