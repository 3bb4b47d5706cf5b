"""Records the trace of each segment, merged from all ranks, and computes its true values.

Real gloo ranks under torchrun train the segments of a job one after the other.
"""

import csv
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.plan import Segment
from devstack.parts import ROOT, TrainingProcess

TRACES = ROOT / ".accuracy"
# A step of a real training takes this long; a step here takes a thirtieth of it.
REPLAYED_STEP_SECONDS = 2.0

# Segments per launch: starting ranks takes 20 s, and an interruption loses a launch.
AT_ONCE = 12
# The first steps fill caches.
WARM_STEPS: Final = 5
SYNC: Final = "sync_s"
IDENTITY: Final = ("job_id", "rank", "peer_group", "step", "time_s", "node")

Row = dict[str, str]
# Seconds of every rank in one step, by column, and when it ended for the last of them.
Step = dict[int, dict[str, float]]
# Each rank's delays, in seconds by step from 0.
Delayed = Mapping[int, Mapping[int, float]]


class TraceError(Exception):
    """The ranks did not record the planned training."""


@dataclass(frozen=True)
class Truth:
    """What really happened in a segment; fields in *_run* cover all of it, not only the fault.

    *slowdown_run* is the run's duration over its duration without the delays (for a hog: over
    healthy steps). *size* is the delay as it took effect, in healthy steps per step. GPUs lost are
    the ranks' waits for the slowest of each step, without communication. *common* is the share of
    the step that even the rank with the shortest wait waits. Times are seconds from the start of
    the first step.
    """

    healthy_step_seconds: float
    slowdown_run: float
    size: float
    gpus_lost: float
    gpus_lost_run: float
    common: float
    begin_seconds: float
    end_seconds: float | None

    def to_json(self) -> dict[str, Any]:
        """Return JSON that `Truth(**json)` reads."""
        return asdict(self)


def record_missing(segments: Sequence[Segment], traces: Path) -> None:
    """Record those of *segments*, all of one way and number of ranks, that *traces* lacks."""
    traces.mkdir(parents=True, exist_ok=True)
    new = [one for one in segments if not (traces / f"{one.key}.json").exists()]
    for start in range(0, len(new), AT_ONCE):
        part = new[start : start + AT_ONCE]
        with timed(f"recorded {part[0].key} to {part[-1].key}"):
            record(part, traces)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the block took."""
    started = time.monotonic()
    yield
    print(f"{what} in {time.monotonic() - started:.0f} s", flush=True)


def record(segments: Sequence[Segment], traces: Path) -> None:
    """Train *segments*, all of one way and number of ranks, and keep their traces in *traces*."""
    ranks = segments[0].ranks
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        plan.write_text(json.dumps([segment.to_json() for segment in segments]))
        training = TrainingProcess(
            folder,
            [str(plan), str(folder)],
            exporter=f"unix:{folder}/nobody",
            ranks=ranks,
            environment={"RANK_PROBE_TRACE": f"{folder}/raw"},
            script=("-m", "benchmarks.accuracy.job"),
        )
        with training:
            while training.exit_code is None:
                time.sleep(0.2)
        if training.exit_code:
            raise TraceError(f"the ranks failed:\n{training.last_lines(60)}")
        delayed = {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)}
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


def commit() -> str:
    """Return the commit of the checkout, with a plus if files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def merge(segment: Segment, rows_of: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the rows of all ranks by step, the emulated node included; raises TraceError."""
    for rank in range(segment.ranks):
        found = len(rows_of.get(rank, ()))
        if found != segment.steps:
            raise TraceError(f"{segment.key}: rank {rank} has {found} of {segment.steps} steps")
    rows = [
        {**row, "node": str(segment.node(rank))}
        for rank, each in sorted(rows_of.items())
        for row in each
    ]
    return sorted(rows, key=lambda row: (int(row["step"]), int(row["rank"])))


def recorded_truth(segment: Segment, traces: Path) -> Truth:
    """Return the true values of *segment*, whose trace and notes lie in *traces*."""
    notes = json.loads((traces / f"{segment.key}.json").read_text())
    delayed = {
        int(rank): {int(step): seconds for step, seconds in steps.items()}
        for rank, steps in notes["delayed"].items()
    }
    return truth(segment, read_rows(traces / f"{segment.key}.csv"), delayed)


def truth(segment: Segment, rows: Sequence[Row], delayed: Delayed) -> Truth:
    """Return the true values of *rows*, the merged ones.

    A delay after the release (optimizer, checkpoint) is in the row of the next step.
    """
    steps, ends = _steps(rows)
    healthy = steps[WARM_STEPS : segment.healthy_steps]
    faulty = steps[segment.healthy_steps : segment.fault_ends + 1]
    usual = _step_seconds(healthy)
    origin = ends[0] - max(sum(cells.values()) for cells in steps[0].values())
    ends_early = segment.fault_ends < segment.steps
    return Truth(
        healthy_step_seconds=usual,
        slowdown_run=_slowdown_run(segment, steps, usual, delayed),
        size=_size(segment, healthy, faulty, delayed) / usual,
        gpus_lost=_gpus_lost(faulty),
        gpus_lost_run=_gpus_lost(steps),
        common=sum(min(_waits(step)) for step in steps) / (_step_seconds(steps) * len(steps)),
        begin_seconds=ends[segment.healthy_steps - 1] - origin,
        end_seconds=ends[segment.fault_ends] - origin if ends_early else None,
    )


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a trace file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write *rows* as one trace file, the node before the stages."""
    columns = [*IDENTITY, *(name for name in rows[0] if name not in IDENTITY)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _steps(rows: Sequence[Row]) -> tuple[list[Step], list[float]]:
    steps: dict[int, Step] = {}
    ends: dict[int, float] = {}
    for row in rows:
        number = int(row["step"])
        cells = {name: float(value) for name, value in row.items() if name not in IDENTITY}
        steps.setdefault(number, {})[int(row["rank"])] = cells
        ends[number] = max(ends.get(number, 0.0), float(row["time_s"]))
    return [steps[number] for number in sorted(steps)], [ends[number] for number in sorted(ends)]


def _step_seconds(steps: Sequence[Step]) -> float:
    lengths = [sum(cells.values()) for step in steps for cells in step.values()]
    return sum(lengths) / len(lengths)


def _busy(step: Step) -> dict[int, float]:
    return {rank: sum(cells.values()) - cells[SYNC] for rank, cells in step.items()}


def _waits(step: Step) -> list[float]:
    return [cells[SYNC] for cells in step.values()]


def _gpus_lost(steps: Sequence[Step]) -> float:
    lost = seconds = 0.0
    for step in steps:
        busy = _busy(step).values()
        lost += max(busy) * len(busy) - sum(busy)
        seconds += _step_seconds([step])
    return lost / seconds


def _slowdown_run(segment: Segment, steps: Sequence[Step], usual: float, delayed: Delayed) -> float:
    """Return the slowdown of the job; ranks delayed in the same step slow it down once."""
    if segment.fault == "hog":
        return _step_seconds(steps[WARM_STEPS:]) / usual
    seconds = _step_seconds(steps) * len(steps)
    late = [max(each.get(step, 0.0) for each in delayed.values()) for step in range(len(steps))]
    return seconds / (seconds - sum(late))


def _size(
    segment: Segment, healthy: Sequence[Step], faulty: Sequence[Step], delayed: Delayed
) -> float:
    """Return a late rank's delay in seconds per step, the mean of several late ones."""
    late = [rank for rank, _ in segment.late()]
    if segment.fault == "hog":  # Only the trace shows its cost.
        mine = [[_busy(step)[late[0]] for step in steps] for steps in (faulty, healthy)]
        return sum(mine[0]) / len(mine[0]) - sum(mine[1]) / len(mine[1])
    seconds = sum(sum(of_rank.values()) for of_rank in delayed.values())
    return seconds / (len(late) or 1) / segment.fault_steps
