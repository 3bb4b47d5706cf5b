"""The ranks that measure: how they meet, exchange what they know, and end instead of hanging."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn

from rank_probe.audit.exchange import why_not
from rank_probe.process import identity
from rank_probe.process.identity import Identity

# The exit status.
CANNOT_MEASURE: Final = 2
# The watchdog's patience ends first, and with a sentence.
LATER_SECONDS: Final = 30.0
# What the other ranks still ask of rank 0's store when it ends.
LAST_ANSWERS_SECONDS: Final = 2.0
START: Final = "torchrun --nproc-per-node 8 -m rank_probe bench-collectives"


class CannotMeasure(Exception):
    """Nothing could be measured; one sentence on what is wrong."""


class Watchdog(threading.Thread):
    """Ends the process when a step takes longer than *patience_seconds*."""

    def __init__(self, rank: int, patience_seconds: float) -> None:
        super().__init__(daemon=True)
        self._rank, self._patience = rank, patience_seconds
        self.begins("the start")

    def begins(self, step: str) -> None:
        """Begin the next *step*, with new patience."""
        self.step = step
        self._give_up = time.monotonic() + self._patience

    def end(self, sentence: str) -> NoReturn:
        """Print *sentence*, and end this process."""
        print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)
        if self._rank == 0:
            time.sleep(LAST_ANSWERS_SECONDS)
        os._exit(CANNOT_MEASURE)

    def run(self) -> None:
        """Watch until the process ends."""
        while (left := self._give_up - time.monotonic()) > 0:
            time.sleep(left)
        self.end(
            f"rank {self._rank} waited {self._patience:.0f} s in vain during {self.step}: a rank "
            "has ended or hangs, or a link is down; for slow links raise --timeout or lower "
            "--max-mib"
        )


def place(environment: Mapping[str, str]) -> Identity:
    """Return this process's place; raises CannotMeasure without a launcher, peers or torch."""
    me = identity.from_environment(environment)
    if me is None:
        raise CannotMeasure(f"no launcher has given this process a rank; start it with: {START}")
    if me.world_size < 2:
        raise CannotMeasure(f"one rank alone has no link; start at least two: {START}")
    if problem := why_not(environment):
        raise CannotMeasure(problem)
    return me


def chosen(backend: str | None) -> str:
    """Return *backend*, or like torch NCCL where there is a GPU; raises CannotMeasure."""
    import torch
    from torch import distributed

    can_nccl = torch.cuda.is_available() and distributed.is_nccl_available()
    if backend == "nccl" and not can_nccl:
        raise CannotMeasure("nccl needs a GPU and a torch built with it; use --backend gloo")
    return backend or ("nccl" if can_nccl else "gloo")


@dataclass(slots=True)
class World:
    """All ranks, as one of them sees them.

    *begins* is told the next step. *hosts* has the host of each rank, by rank.
    """

    rank: int
    size: int
    backend: str
    device: Any
    store: Any
    begins: Callable[[str], None]
    hosts: tuple[str, ...] = ()
    exchanges: int = 0

    @property
    def on_gpu(self) -> bool:
        """Whether operations are enqueued on a CUDA stream."""
        return self.backend == "nccl"

    def barrier(self) -> None:
        """Wait for all ranks, with a collective, after which they go on within microseconds."""
        self.largest(0.0)

    def largest(self, value: float) -> float:
        """Return the largest *value* of all ranks."""
        import torch
        from torch import distributed

        tensor = torch.tensor([value], dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        return float(tensor.item())

    def exchange(self, mine: Any) -> list[Any]:
        """Return what each rank gives, by rank and the same on all of them; through the store."""
        self.exchanges += 1
        keys = [f"{self.exchanges}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(mine))
        return [json.loads(self.store.get(key)) for key in keys]


@contextmanager
def joined(
    me: Identity, backend: str, timeout_seconds: float, watchdog: Watchdog
) -> Iterator[World]:
    """Meet the other ranks, take the device, and make the process group that is measured."""
    import torch
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    from rank_probe.torch_hooks.store import PrefixStore

    device = torch.device("cpu")
    if backend == "nccl":
        count = torch.cuda.device_count()
        local_rank = int(me.local_rank) if me.local_rank.isdecimal() else 0
        if local_rank >= count:
            raise CannotMeasure(
                f"local rank {local_rank} finds {count} GPUs on its node, and NCCL needs one for "
                "each rank: start fewer ranks per node"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    watchdog.begins("the ranks' search for one another")
    os.environ |= {"RANK": str(me.rank), "WORLD_SIZE": str(me.world_size)}
    patience = timedelta(seconds=timeout_seconds + LATER_SECONDS)
    store, _, _ = next(iter(rendezvous("env://", timeout=patience)))
    store.set_timeout(patience)
    store = PrefixStore("rankskew-bench-collectives", store)
    world = World(me.rank, me.world_size, backend, device, store, watchdog.begins)
    world.hosts = tuple(world.exchange(socket.gethostname()))
    world.begins("the making of the process group")
    distributed.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=me.rank,
        world_size=me.world_size,
        timeout=patience,
    )
    world.barrier()
    yield world
    # Rank 0 may be the store: it stays until all have come so far.
    world.begins("the end")
    world.exchange(None)
    distributed.destroy_process_group()
