"""`rankskew replay`: read the traces that ranks wrote, and say who was late and what it cost."""

import csv
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final, TextIO

from exporter.accounting import Account, account, named
from exporter.errors import UsageError, reason
from exporter.skew import Late
from rank_probe.stages import STAGES

IDENTITY: Final = ("job_id", "rank", "peer_group", "step", "time_s")
STAGE_OF: Final = {f"{stage}_s": stage for stage in STAGES}
# What a rank causes in a stage now and then is noise below this part of the whole loss.
SMALLEST_PART: Final = 0.01
REASONS: Final = {
    "single_rank": "the trace has one rank, and nobody to compare it with",
    "no_sync": "the wait in collectives was not measured on every rank, so a rank that waits looks "
    "like a late one",
    "no_busy_time": "a rank has steps without any time of its own",
}


@dataclass(slots=True)
class Run:
    """One attempt of one job: the stages of each rank, by step; and each rank's peer group."""

    job_id: str
    attempt: int
    steps: dict[int, dict[int, dict[str, float]]] = field(default_factory=dict)
    peer_groups: dict[int, str] = field(default_factory=dict)


def read_traces(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in *paths*, files or directories of them; raises UsageError.

    The attempt is in the name of a file that the probe wrote, and 0 elsewhere. An end that a
    killed process left in the middle of a row is left out, and said on stderr.
    """
    runs: dict[tuple[str, int], Run] = {}
    for path in [file for given in paths for file in _files(given)]:
        try:
            with path.open(newline="") as file:
                _read(path, file, runs)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {reason(error)}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 text") from error
    if not runs:
        raise UsageError("there is no step in these files; RANK_PROBE_TRACE says where ranks write")
    return [runs[key] for key in sorted(runs)]


def report(runs: Iterable[Run]) -> str:
    """Return the accounting of *runs* as text for a person."""
    return "\n\n".join(_report(run) for run in runs)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.csv"))
    if not files:
        raise UsageError(f"{path} has no .csv file")
    return files


def _read(path: Path, file: TextIO, runs: dict[tuple[str, int], Run]) -> None:
    rows = csv.reader(_whole_lines(path, file), strict=True)
    columns: list[str] = []
    try:
        for row in rows:
            if columns:
                _take(path, dict(zip(columns, row, strict=True)), runs)
            else:
                columns = _columns(row)
    except (csv.Error, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise
        what = str(error) if not str(error).startswith("zip()") else "it has not as many cells"
        raise UsageError(f"{path}, line {rows.line_num}: {what}") from error


def _whole_lines(path: Path, file: TextIO) -> Iterator[str]:
    for line in file:
        if line.endswith(("\n", "\r")):
            yield line
        else:
            print(f"rankskew: {path}: its last row has no end and is left out", file=sys.stderr)


def _columns(names: list[str]) -> list[str]:
    if missing := [name for name in IDENTITY if name not in names]:
        raise ValueError(f"the header has no column {missing[0]}")
    for name in names:
        if name not in IDENTITY and name not in STAGE_OF:
            raise ValueError(f"column {name[:40]!r} is no stage; use {', '.join(STAGE_OF)}")
    if len(set(names)) < len(names) or len(names) == len(IDENTITY):
        raise ValueError("the header needs columns of stages, each once")
    return names


def _take(path: Path, cells: dict[str, str], runs: dict[tuple[str, int], Run]) -> None:
    job_id, rank, step = cells["job_id"], _count(cells, "rank"), _count(cells, "step")
    _seconds(cells, "time_s")
    key = (job_id, _attempt(path.name, rank))
    run = runs.setdefault(key, Run(*key))
    ranks = run.steps.setdefault(step, {})
    stages = {
        stage: seconds
        for column, stage in STAGE_OF.items()
        if (seconds := _seconds(cells, column)) is not None
    }
    if ranks.setdefault(rank, stages) != stages:  # The same row again is harmless.
        raise ValueError(
            f"rank {rank} of job {job_id!r} has two times for step {step}; keep each run in a "
            "directory of its own"
        )
    run.peer_groups[rank] = cells["peer_group"] or "all"


def _attempt(name: str, rank: int) -> int:
    match = re.search(r"-(\d+)-(\d+)\.csv$", name, re.ASCII)
    return int(match[1]) if match and int(match[2]) == rank else 0


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
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"{column} is {text[:40]!r}, not a number of seconds")
    return seconds


def _report(run: Run) -> str:
    ranks = run.peer_groups.keys()
    whole = [ranks_of for _, ranks_of in sorted(run.steps.items()) if ranks_of.keys() == ranks]
    lines = [
        f"job {run.job_id}, attempt {run.attempt}: {len(whole)} steps of {len(ranks)} ranks"
        f"{_left_out(len(run.steps) - len(whole))}"
    ]
    if not whole:
        return f"{lines[0]}\n  no step has all ranks, so none can be accounted for"
    verdict, found = named(whole, run.peer_groups), account(whole, run.peer_groups)
    what = "if all waited for the slowest, lost" if verdict.reason else "lost to waiting"
    lines.append(f"  {what}: {_cost(found.lost, found)} of {len(ranks)}")
    lines += _causes(found, verdict.late)
    lines += _groups(found, run.peer_groups)
    lines.append(f"  {_verdict(verdict.late, verdict.reason)}")
    return "\n".join(lines)


def _left_out(steps: int) -> str:
    return f" ({steps} more lack a rank and are left out)" if steps else ""


def _cost(gpu_seconds: float, found: Account) -> str:
    return f"{gpu_seconds:.2f} GPU-seconds, {gpu_seconds / (found.seconds or 1.0):.3f} GPUs"


def _causes(found: Account, late: Sequence[Late]) -> Iterator[str]:
    """Yield where the loss comes from; the lines add up to it."""
    ranks = {each.rank for each in late}
    shown = {
        key: seconds
        for key, seconds in found.caused.items()
        if key[0] in ranks and seconds >= SMALLEST_PART * found.lost
    }
    for (rank, stage), seconds in sorted(shown.items(), key=lambda each: -each[1]):
        yield f"    rank {rank} in {stage}: {_cost(seconds, found)}"
    if found.by_groups:
        yield f"    unequal peer groups: {_cost(found.by_groups, found)}"
    rest = sum(found.caused.values()) - sum(shown.values()) + found.by_nobody
    yield f"    now one rank, now another: {_cost(rest, found)}"


def _groups(found: Account, peer_groups: dict[int, str]) -> Iterator[str]:
    for name in sorted(set(peer_groups.values())):
        ranks = sorted(rank for rank, group in peer_groups.items() if group == name)
        waited = sum(found.waited[rank] for rank in ranks)
        least = min(ranks, key=lambda rank: found.waited[rank])
        yield (
            f"  peer group {name}: {len(ranks)} ranks waited {_cost(waited, found)}; "
            f"rank {least} waited least, {found.waited[least]:.2f} s"
        )


def _verdict(late: Sequence[Late], why_not: str | None) -> str:
    if why_not is not None:
        return f"nobody can be named: {REASONS[why_not]}"
    if not late:
        return "no rank is late"
    return "late: " + ", ".join(f"rank {each.rank} in {each.stage}" for each in late)
