"""Traces: the steps of each rank, read from CSV files; errors name the file and line.

A judge compares ranks over steps that all of them have. In a trace ranks may come and go, and rows
may be missing, so it is cut into stretches of the same ranks, on one clock.
"""

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO

from exporter.errors import UsageError, reading
from rank_probe.judge.windows import LEAST_STEPS
from rank_probe.wire.stages import STAGES
from rank_probe.wire.text import printable
from rankskew.accounting.step import SYNC

IDENTITY: Final = ("job_id", "rank", "peer_group", "step", "time_s")
NODE: Final = "node"
STAGE_OF: Final = {f"{stage}_s": stage for stage in STAGES}
# Three thousand years: seconds since 1970 are below it, milliseconds are not.
MOST_SECONDS: Final = 1e11
# time_s is rounded in the files.
ROUNDING_SECONDS: Final = 0.01


@dataclass(slots=True)
class Run:
    """One attempt of one job, as recorded in its files; in seconds throughout.

    *steps* [step][rank] has the measured stages, *times* [rank][step] the time_s of that row;
    *peer_groups* and *nodes* [rank] are the last ones in the rank's rows ("" is unknown).
    """

    job_id: str
    attempt: int
    steps: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    times: dict[int, dict[int, float]] = field(default_factory=dict)
    peer_groups: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    _last: dict[int, tuple[int, float]] = field(default_factory=dict)

    def add(self, rank: int, step: int, time: float, stages: dict[str, float]) -> None:
        """Add a row; raises ValueError if it contradicts another one."""
        ranks = self.steps.setdefault(step, {})
        times = self.times.setdefault(rank, {})
        # A repeated row is harmless.
        if ranks.setdefault(rank, stages) != stages or times.setdefault(step, time) != time:
            raise ValueError(
                f"rank {rank} of job {self.job_id!r} has two times for step {step}; keep each run "
                "in a directory of its own"
            )
        last_step, last_time = self._last.get(rank, (step, time))
        if (step > last_step and time < last_time) or (step < last_step and time > last_time):
            raise ValueError(
                f"time_s goes backwards for rank {rank} of job {self.job_id!r}: step {last_step} "
                f"was at {last_time:g}, step {step} is at {time:g}; expected increasing times"
            )
        self._last[rank] = step, time


def read_traces(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in *paths*, files or directories of them; raises UsageError.

    The attempt is in the name of a file that the probe wrote, and 0 for other files. An incomplete
    last row, as a killed process leaves it, is skipped and reported on stderr.
    """
    runs: dict[tuple[str, int], Run] = {}
    for path in [file for given in paths for file in _files(given)]:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            _read(path, file, runs)
    if not runs:
        raise UsageError("these files contain no step; RANK_PROBE_TRACE sets where ranks write")
    return [runs[key] for key in sorted(runs)]


def _files(path: Path) -> list[Path]:
    with reading(path):
        files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} has no .csv file")
    return files


def _read(path: Path, file: TextIO, runs: dict[tuple[str, int], Run]) -> None:
    rows = csv.DictReader(_whole_lines(path, file), strict=True)
    try:
        if rows.fieldnames is not None:  # Its process may have been killed before the header.
            _check_columns(rows.fieldnames)
        for cells in rows:
            if None in cells or None in cells.values():
                raise ValueError("it has more or fewer cells than the header")
            _take(path, cells, runs)
    except (csv.Error, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        raise UsageError(f"{path}, line {rows.reader.line_num}: {error}") from error


def _whole_lines(path: Path, file: TextIO) -> Iterator[str]:
    for line in file:
        if line.endswith(("\n", "\r")):
            yield line
        else:
            said = f"rankskew: {path}: its last row has no newline and is left out"
            print(printable(said), file=sys.stderr)


def _check_columns(names: Sequence[str]) -> None:
    if missing := [name for name in IDENTITY if name not in names]:
        raise ValueError(
            f"the header has no column {missing[0]}; expected {', '.join(IDENTITY)} and stages"
        )
    stages = [name for name in names if name not in (*IDENTITY, NODE)]
    for name in stages:
        if name not in STAGE_OF:
            raise ValueError(f"column {name[:40]!r} is not a stage; use {', '.join(STAGE_OF)}")
    if len(set(names)) < len(names) or not stages:
        raise ValueError("the header needs columns of stages, each once")


def _take(path: Path, cells: dict[str, str], runs: dict[tuple[str, int], Run]) -> None:
    rank, step = _count(cells, "rank"), _count(cells, "step")
    time = _seconds(cells, "time_s")
    if time is None:
        raise ValueError("time_s is empty; expected seconds from the start")
    stages = {
        stage: seconds
        for column, stage in STAGE_OF.items()
        if (seconds := _seconds(cells, column)) is not None
    }
    if not stages:  # Nothing was measured, so there is no step to count.
        return
    job_id = printable(cells["job_id"])
    key = (job_id, _attempt(path.name, job_id, rank))
    run = runs.setdefault(key, Run(*key))
    run.add(rank, step, time, stages)
    run.peer_groups[rank] = printable(cells["peer_group"]) or "all"
    run.nodes[rank] = printable(cells.get(NODE, ""))


def _attempt(name: str, job_id: str, rank: int) -> int:
    """Return the attempt in *name*, if this is a file name that the probe would give."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", job_id)  # As in rank_probe/report/trace.py.
    match = re.fullmatch(r"(.*)-(\d+)-(\d+)\.csv", name, re.ASCII)
    return int(match[2]) if match and (match[1], match[3]) == (safe, str(rank)) else 0


def _count(cells: dict[str, str], column: str) -> int:
    text = cells[column]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(f"{column} is {text[:40]!r}, not a whole number")
    return int(text)


def _seconds(cells: dict[str, str], column: str) -> float | None:
    text = cells.get(column, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_SECONDS:  # Refuses NaN too.
        raise ValueError(
            f"{column} is {text[:40]!r}, not a number of seconds from 0 to {MOST_SECONDS:g}"
        )
    return seconds


def instance(node: str) -> str:
    """Return the instance label for *node*, a node's rank or name; "" is the only node."""
    return f"node{node or 0}" if node.isdigit() or not node else node


# ---- The clock -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceTimeline:
    """When the steps of a run ended, in *scaled* seconds since its first step began.

    *ends* [rank] are in step order and never decrease.
    """

    scale: float
    ends: Mapping[int, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return max(max(ends.values()) for ends in self.ends.values())


def timeline(run: Run, scale: float) -> TraceTimeline:
    """Place the steps of *run* in time, *scale* times slower than recorded.

    The probe's time_s is the end of a step. If a first step takes longer than its time_s, it cannot
    have ended then, so time_s is the beginning of each step in that trace. If time_s is the same
    everywhere, steps follow each other.
    """
    lengths = {
        rank: {step: sum(run.steps[step][rank].values()) for step in sorted(times)}
        for rank, times in run.times.items()
    }
    firsts = {rank: min(times) for rank, times in run.times.items()}
    at_begin = any(
        lengths[rank][first] > run.times[rank][first] + ROUNDING_SECONDS
        for rank, first in firsts.items()
    )
    stands_still = len({time for times in run.times.values() for time in times.values()}) == 1
    ends: dict[int, dict[int, float]] = {}
    for rank, steps in lengths.items():
        ends[rank], before = {}, 0.0
        for step, length in steps.items():
            before = max(before, run.times[rank][step] + at_begin * length)
            before += length * (stands_still and bool(ends[rank]))
            ends[rank][step] = before
    # A step begins at once for all of its ranks: clocks of nodes and rounding differ only a little.
    origin = min(
        ends[peer][first] - lengths[peer][first]
        for first in firsts.values()
        for peer in run.steps[first]
    )
    placed = {
        rank: {step: (end - origin) * scale for step, end in of_rank.items()}
        for rank, of_rank in ends.items()
    }
    return TraceTimeline(scale, placed)


def has_sync(run: Run) -> bool:
    """Return whether any wait was measured; all zeros mean none."""
    return any(stages.get(SYNC) for ranks in run.steps.values() for stages in ranks.values())


# ---- Stretches ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TraceStretch:
    """A period in which exactly *ranks* were there, in scaled seconds since the run began.

    *steps* are those that all of them have, in order.
    """

    ranks: tuple[int, ...]
    steps: Sequence[int]
    begin: float
    end: float


def stretches(run: Run, line: TraceTimeline) -> list[TraceStretch]:
    """Return the stretches of *run*, in order.

    A rank is there from its first row to its last, except where it lacks LEAST_STEPS consecutive
    steps. Ranks with too few rows to be judged are left out: with them, hardly any step is whole.
    """
    numbers = sorted(run.steps)
    places = {step: place for place, step in enumerate(numbers)}
    there = {
        rank: list(_presences(sorted(places[step] for step in times), len(numbers)))
        for rank, times in run.times.items()
    }
    borders = sorted({border for spans in there.values() for span in spans for border in span})
    found = []
    for first, after in pairwise(borders):
        ranks = tuple(
            rank
            for rank in sorted(there)
            if any(begin <= first and after <= end for begin, end in there[rank])
        )
        if ranks:
            found.append(_stretch(run, line, ranks, numbers[first:after]))
    return found


def _presences(places: Sequence[int], steps: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of places in which a rank with rows at these *places* was there."""
    gaps = [at for at in range(1, len(places)) if places[at] - places[at - 1] > LEAST_STEPS]
    for start, stop in pairwise([0, *gaps, len(places)]):
        first, last = places[start], places[stop - 1]
        # At the beginning and end of a run, ranks may be some rows apart.
        begin = first if first >= LEAST_STEPS else 0
        end = last + 1 if steps - last > LEAST_STEPS else steps
        rows = stop - start
        if rows >= min(LEAST_STEPS, steps / 2) and 2 * rows >= last + 1 - first:
            yield begin, end


def _stretch(
    run: Run, line: TraceTimeline, ranks: tuple[int, ...], numbers: Sequence[int]
) -> TraceStretch:
    ends = [line.ends[rank][step] for step in numbers for rank in run.steps[step]]
    begins = [
        line.ends[rank][step] - line.scale * sum(stages.values())
        for step in numbers[:1]
        for rank, stages in run.steps[step].items()
    ]
    return TraceStretch(
        ranks=ranks,
        steps=[step for step in numbers if all(rank in run.steps[step] for rank in ranks)],
        begin=max(min(begins), 0.0),
        end=max(ends),
    )
