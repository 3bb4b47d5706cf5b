"""The ranks that measure: how they meet, talk through a store, and end instead of hanging."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn

from rank_probe.process import identity

# The exit status.
CANNOT_MEASURE: Final = 2
# The watchdog's patience ends first, and with a sentence.
LATER_SECONDS: Final = 30.0
# What the other ranks still ask of rank 0's store when it ends.
LAST_ANSWERS_SECONDS: Final = 2.0
START: Final = "torchrun --nproc-per-node 8 -m rank_probe bench-collectives"


class CannotMeasure(Exception):
    """Nothing could be measured; one sentence on what is wrong, empty if another rank says it."""


class Watchdog:
    """A thread that ends the process when a step takes longer than *patience_seconds*."""

    def __init__(self, rank: int, patience_seconds: float) -> None:
        self._rank, self._patience = rank, patience_seconds
        self.says("the start")

    def says(self, doing: str) -> None:
        """Begin the next step, called *doing*, with new patience."""
        self.doing = doing
        self._give_up = time.monotonic() + self._patience

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs."""
        done = threading.Event()
        threading.Thread(target=self._watch, args=(done,), daemon=True).start()
        try:
            yield
        finally:
            done.set()

    def end(self, sentence: str) -> NoReturn:
        """Print *sentence*, unless it is empty, and end this process."""
        if sentence:
            print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)
        if self._rank == 0:
            time.sleep(LAST_ANSWERS_SECONDS)
        os._exit(CANNOT_MEASURE)

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(max(self._give_up - time.monotonic(), 0.0)):
            if time.monotonic() > self._give_up:
                self.end(
                    f"rank {self._rank} waited {self._patience:.0f} s in vain during "
                    f"{self.doing}: a rank has ended or hangs, or a link is down; for slow links "
                    "raise --timeout"
                )


@dataclass(frozen=True, slots=True)
class PlaceInWorld:
    """Which rank of how many this process is, and which of those on its node."""

    rank: int
    size: int
    local_rank: int


def place(environment: Mapping[str, str]) -> PlaceInWorld:
    """Return this process's place; raises CannotMeasure without a launcher."""
    me = identity.from_environment(environment)
    if me is None:
        raise CannotMeasure(f"no launcher has given this process a rank; start it with: {START}")
    if me.world_size < 2:
        raise CannotMeasure(f"one rank alone has no link; start at least two: {START}")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
    if missing:
        raise CannotMeasure(
            f"{' and '.join(missing)} must be set, so that the ranks find one another; torchrun "
            "sets them"
        )
    local_rank = int(me.local_rank) if me.local_rank.isdecimal() else 0
    return PlaceInWorld(me.rank, me.world_size, local_rank)


@dataclass(slots=True)
class World:
    """All ranks, as one of them sees them; *hosts* has the host of each rank, by rank."""

    me: PlaceInWorld
    backend: str
    store: Any
    watchdog: Watchdog
    device: Any = None
    hosts: tuple[str, ...] = ()
    exchanges: int = 0

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.me.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.me.size

    @property
    def on_gpu(self) -> bool:
        """Whether operations are enqueued on a CUDA stream."""
        return self.backend == "nccl"

    def says(self, doing: str) -> None:
        """Begin the next step."""
        self.watchdog.says(doing)

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
        """Return what each rank has to say, by rank; through the store, so in its own time."""
        return list(self.announce(self.gather(mine)))

    def gather(self, mine: Any) -> list[Any] | None:
        """Return what each rank has to say, by rank, on rank 0; None on the others."""
        self.exchanges += 1
        self.store.set(f"{self.exchanges}/{self.rank}", json.dumps(mine))
        if self.rank:
            return None
        return [json.loads(self.store.get(f"{self.exchanges}/{rank}")) for rank in range(self.size)]

    def announce(self, message: Any) -> Any:
        """Return what rank 0 has to say."""
        self.exchanges += 1
        if self.rank == 0:
            self.store.set(str(self.exchanges), json.dumps(message))
        return json.loads(self.store.get(str(self.exchanges)))

    def connect(self, timeout_seconds: float) -> None:
        """Take the device, and make the process group that is measured."""
        import torch
        from torch import distributed

        from rank_probe.torch_hooks.store import PrefixStore

        self.says("the making of the process group")
        self.device = torch.device("cpu")
        if self.on_gpu:
            count = torch.cuda.device_count()
            if self.me.local_rank >= count:
                raise CannotMeasure(
                    f"local rank {self.me.local_rank} finds {count} GPUs on its node, and NCCL "
                    "needs one for each rank: start fewer ranks per node"
                )
            self.device = torch.device("cuda", self.me.local_rank)
            torch.cuda.set_device(self.device)
        distributed.init_process_group(
            self.backend,
            store=PrefixStore("group", self.store),
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=timeout_seconds + LATER_SECONDS),
        )
        self.barrier()


@contextmanager
def joined(
    me: PlaceInWorld, backend: str | None, timeout_seconds: float, watchdog: Watchdog
) -> Iterator[World]:
    """Meet the other ranks and give the world, in which no device has been used yet."""
    torch_backend = chosen(backend)
    from torch import distributed
    from torch.distributed.rendezvous import rendezvous

    from rank_probe.torch_hooks.store import PrefixStore

    watchdog.says("the ranks' search for one another")
    os.environ |= {"RANK": str(me.rank), "WORLD_SIZE": str(me.size)}
    patience = timedelta(seconds=timeout_seconds + LATER_SECONDS)
    store, _, _ = next(iter(rendezvous("env://", timeout=patience)))
    store.set_timeout(patience)
    store = PrefixStore("rankskew-bench-collectives", store)
    world = World(me, torch_backend, store, watchdog)
    world.hosts = tuple(world.exchange(socket.gethostname()))
    yield world
    if distributed.is_initialized():
        distributed.destroy_process_group()


def chosen(backend: str | None) -> str:
    """Return *backend*, or like torch NCCL where there is a GPU; raises CannotMeasure."""
    try:
        import torch
        from torch import distributed
    except ImportError:
        raise CannotMeasure(
            "torch cannot be imported: run this with the Python of the training job"
        ) from None
    if not distributed.is_available():
        raise CannotMeasure("this torch was built without torch.distributed")
    can_nccl = torch.cuda.is_available() and distributed.is_nccl_available()
    if backend == "nccl" and not can_nccl:
        raise CannotMeasure("nccl needs a GPU and a torch built with it; use --backend gloo")
    return backend or ("nccl" if can_nccl else "gloo")
