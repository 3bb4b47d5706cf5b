"""Has torch write the dumps of four gloo ranks, as fixtures.

`python -m tests.rankskew.flight_recorder.gloo_dumps` writes them again, with short paths; with a
case and a folder it is one of the ranks: a collective goes wrong, and torch's recorder is dumped.
torch writes dumps by itself only with the NCCL backend, when a collective times out.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from tests.exporter.running import ROOT
from tests.rankskew.flight_recorder.nccl import FIXTURES

CASES = ("missing", "size", "type", "fine")
LATE_RANK = 2


# ---- A rank ------------------------------------------------------------------------------------


def all_reduce(size: int) -> None:
    """Sum *size* numbers over the ranks."""
    dist.all_reduce(torch.ones(size))


def dump(folder: Path) -> None:
    """Write this rank's dump."""
    pickled = _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
    (folder / f"comm_lib_trace_rank_{dist.get_rank()}").write_bytes(pickled)


def dump_and_end(folder: Path, seconds: float) -> None:
    """Dump, and end once the others have dumped too: gloo reports a lost peer as finished."""
    dump(folder)
    time.sleep(seconds)
    os._exit(0)


def go_wrong(case: str, folder: Path) -> None:
    """Do what *case* says, and never return from it."""
    is_late = dist.get_rank() == LATE_RANK
    if case == "size" and is_late:
        time.sleep(2.0)  # The others have dumped: gloo ends a process that sees the mismatch.
        dist.all_reduce(torch.ones(16), async_op=True)
        dump(folder)
        os._exit(0)
    if case == "missing" and is_late:
        time.sleep(60)
    if case == "type" and is_late:
        dist.broadcast(torch.ones(8), 0)
    all_reduce(8)


def train(case: str, folder: Path) -> None:
    """Agree on a few collectives, then go wrong."""
    dist.init_process_group("gloo")
    for _ in range(3):
        all_reduce(4)
    _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]  # The first one takes long.
    dist.barrier()
    threading.Timer(1.0, dump_and_end, (folder, 2.5)).start()
    go_wrong(case, folder)
    time.sleep(60)


# ---- The fixtures -------------------------------------------------------------------------------


def record(case: str, folder: Path) -> None:
    """Run *case* on four ranks, each of which dumps into *folder*."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    rank = "tests.rankskew.flight_recorder.gloo_dumps"
    environment = os.environ | {
        "TORCH_FR_BUFFER_SIZE": "100",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    # Its status says nothing: gloo aborts ranks whose peers are gone.
    subprocess.run(
        [*torchrun, "-m", rank, case, str(folder)],
        env=environment,
        capture_output=True,
        timeout=90,
        check=False,
    )


def shorten(file: Path) -> None:
    """Leave out of a pickle where this machine has its files; torch wrote all else."""
    dump: dict[str, Any] = pickle.loads(file.read_bytes())  # We have just written it.
    for entry in dump["entries"]:
        for frame in entry.get("frames", ()):
            inside = frame["filename"].partition("/site-packages/")[2]
            own = frame["filename"].replace(str(ROOT), "/repo")
            frame["filename"] = f"/venv/site-packages/{inside}" if inside else own
    file.write_bytes(pickle.dumps(dump, protocol=2))


def main() -> None:
    """Write the fixtures."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            record(case, Path(folder))
            for file in Path(folder).iterdir():
                shorten(file)
                target = FIXTURES / case / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
