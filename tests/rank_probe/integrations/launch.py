"""Launch a framework's job and read what its ranks pushed: the one late, the other waiting."""

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.rank_probe.sink import Sink, listening

ROOT = Path(__file__).parents[3]
PACKAGE = "tests.rank_probe.integrations"

Ranks = dict[int, dict[str, Any]]


def torchrun(folder: Path, job: str, *arguments: str, ranks: int = 2) -> dict[str, Ranks]:
    """Run *job* on gloo ranks; return each rank's last snapshot, by the name of its run."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    return run(folder, [*launcher, "-m", f"{PACKAGE}.{job}", *arguments])


def run(folder: Path, command: Sequence[str]) -> dict[str, Ranks]:
    """Run Python with *command*; return each rank's last snapshot, by the name of its run."""
    with listening(folder / "s") as sink:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "RANKSKEW_EXPORTER": f"unix:{folder}/s"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=240)
        finally:
            _end(process)
    assert process.returncode == 0, output[-4000:]
    return _last(sink)


def leave() -> NoReturn:
    """End a job's process as it would end by itself, but for the interpreter's own end.

    What still holds a process group then keeps gloo's threads alive, and one that lets go of a
    tensor just then aborts the process (pytorch/pytorch#179291).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing of its group behind: Ray's agents outlive a cluster that was killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(sink: Sink) -> dict[str, Ranks]:
    last: dict[str, Ranks] = {}
    for snapshot in sink.snapshots:
        last.setdefault(snapshot["job_id"], {})[snapshot["rank"]] = snapshot
    return last


def assert_late(ranks: Mapping[int, dict[str, Any]], stage: str, seconds: float) -> None:
    """The second rank is late by *seconds* in *stage*, and the first one waited for it."""
    victim, late = ranks[0]["stage_seconds"], ranks[1]["stage_seconds"]
    excess = {name: late[name] - victim[name] for name in late}
    waited = victim["sync"] - late["sync"]

    assert max(excess, key=lambda name: excess[name]) == stage, excess
    # Wide, for a machine with more to do: a stage that is missed is off by a third at least.
    assert excess[stage] == pytest.approx(seconds, rel=0.3), excess
    assert waited == pytest.approx(seconds, rel=0.3), excess
