"""What each of four gloo ranks runs: a collective goes wrong, and torch's recorder is dumped.

torch writes dumps by itself only with the NCCL backend, when a collective times out.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

LATE_RANK = 2


def all_reduce(size: int) -> None:
    """Sum *size* numbers over the ranks."""
    dist.all_reduce(torch.ones(size))


def dump(folder: Path) -> None:
    """Write this rank's dump as a pickle and as JSON; nobody ends before all have written."""
    rank = dist.get_rank()
    pickled = _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
    text = _distributed_c10d._dump_fr_trace_json()  # type: ignore[attr-defined]
    (folder / "pickle" / f"comm_lib_trace_rank_{rank}").write_bytes(pickled)
    (folder / "json" / f"comm_lib_trace_rank_{rank}.json").write_bytes(text)


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


def main(case: str, folder: Path) -> None:
    """Agree on a few collectives, then go wrong."""
    dist.init_process_group("gloo")
    for _ in range(3):
        all_reduce(4)
    _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]  # The first one takes long.
    dist.barrier()
    threading.Timer(1.0, dump_and_end, (folder, 2.5)).start()
    go_wrong(case, folder)
    time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
