"""Has torch write the dumps of four gloo ranks, as fixtures.

`python -m tests.rankskew.gloo_dumps` writes them again, with short paths; with a case and a folder
it is one of the ranks: a collective goes wrong, and torch's recorder is dumped. torch writes dumps
by itself only with the NCCL backend, when a collective times out.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FIXTURES: Final = ROOT / "tests" / "fixtures" / "flight_recorder"
CASES: Final = ("missing", "size", "type", "fine")
LATE_RANK: Final = 2


def train(case: str, folder: Path) -> None:
    """As a rank: agree on a few collectives, then let *case* go wrong, and dump into *folder*."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d

    def dump(seconds: float) -> None:
        """End once the others have dumped too: gloo reports a lost peer as finished."""
        pickled = _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
        (folder / f"comm_lib_trace_rank_{dist.get_rank()}").write_bytes(pickled)
        time.sleep(seconds)
        os._exit(0)

    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]  # The first one takes long.
    dist.barrier()
    threading.Timer(1.0, dump, (2.5,)).start()
    is_late = dist.get_rank() == LATE_RANK
    if case == "size" and is_late:
        time.sleep(2.0)  # The others have dumped: gloo ends a process that sees the mismatch.
        dist.all_reduce(torch.ones(16), async_op=True)
        dump(0.0)
    if case == "missing" and is_late:
        time.sleep(60)
    if case == "type" and is_late:
        dist.broadcast(torch.ones(8), 0)
    dist.all_reduce(torch.ones(8))
    time.sleep(60)


def record(case: str, folder: str) -> None:
    """Run *case* on four ranks, and make fixtures of what they dump into *folder*."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    environment = {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    # Its status says nothing: gloo aborts ranks whose peers are gone.
    subprocess.run(
        [*torchrun, "-m", "tests.rankskew.gloo_dumps", case, folder],
        env=os.environ | environment,
        capture_output=True,
        timeout=90,
        check=False,
    )
    (FIXTURES / case).mkdir(parents=True, exist_ok=True)
    for file in Path(folder).iterdir():
        dump: dict[str, Any] = pickle.loads(file.read_bytes())  # We have just written it.
        # Leave out where this machine has its files; torch wrote all else.
        for frame in (each for entry in dump["entries"] for each in entry.get("frames", ())):
            inside = frame["filename"].partition("/site-packages/")[2]
            own = frame["filename"].replace(str(ROOT), "/repo")
            frame["filename"] = f"/venv/site-packages/{inside}" if inside else own
        (FIXTURES / case / file.name).write_bytes(pickle.dumps(dump, protocol=2))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(sys.argv[1], Path(sys.argv[2]))
    else:
        for name in CASES:
            with tempfile.TemporaryDirectory() as written:
                record(name, written)
