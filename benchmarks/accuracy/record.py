"""Record the trace of each segment: real gloo ranks under torchrun train one after the other."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.accuracy.plan import Segment
from benchmarks.accuracy.trace import TraceError, merge, read_rows, write_rows
from devstack.parts import ROOT

TRACES = ROOT / ".accuracy"
# A step of a real training takes this long; a step here takes a thirtieth of it.
REPLAYED_STEP_SECONDS = 2.0

# Segments per launch: starting ranks takes 20 s, and an interruption loses a launch.
AT_ONCE = 12


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
    first = segments[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        plan.write_text(json.dumps([segment.to_json() for segment in segments]))
        command = [sys.executable, "-m", "torch.distributed.run", "--log-dir", f"{folder}/torchrun"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command += ["--nproc-per-node", str(first.ranks), "-m", "benchmarks.accuracy.job"]
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


def commit() -> str:
    """Return the commit of the checkout, with a plus if files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
