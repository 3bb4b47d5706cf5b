"""The ranks that measure: how they find one another, and what they tell one another."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import timedelta
from typing import Any, Final

from rank_probe.collectives.measurements.ending import CannotMeasure, Watchdog, claim_in
from rank_probe.collectives.measurements.timing import Clock, CudaClock, HostClock
from rank_probe.process import identity

# The watchdog's patience ends first, and with a sentence.
LATER_SECONDS: Final = 30.0
START: Final = "torchrun --nproc-per-node 8 -m rank_probe bench-collectives"


@dataclass(slots=True)
class World:
    """All ranks, as one of them sees them; *hosts* has the host of each rank, by rank."""

    rank: int
    size: int
    backend: str
    device: Any
    hosts: tuple[str, ...]
    store: Any
    watchdog: Watchdog
    exchanges: int = 0

    def __str__(self) -> str:
        nodes = len(set(self.hosts))
        return f"{self.size} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}"

    def says(self, doing: str) -> None:
        """Begin the next step."""
        self.watchdog.says(doing)

    def clock(self) -> Clock:
        """Return the clock that can time this backend."""
        return CudaClock() if self.backend == "nccl" else HostClock()

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
        self.store.set(f"{self.exchanges}/{self.rank}", json.dumps(mine, default=_fields))
        if self.rank:
            return None
        return [json.loads(self.store.get(f"{self.exchanges}/{rank}")) for rank in range(self.size)]

    def announce(self, said: Any) -> Any:
        """Return what rank 0 has to say."""
        self.exchanges += 1
        if self.rank == 0:
            self.store.set(str(self.exchanges), json.dumps(said, default=_fields))
        return json.loads(self.store.get(str(self.exchanges)))


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
    return PlaceInWorld(
        me.rank, me.world_size, int(me.local_rank) if me.local_rank.isdecimal() else 0
    )


@contextmanager
def joined(
    me: PlaceInWorld, backend: str | None, timeout_seconds: float, watchdog: Watchdog
) -> Iterator[World]:
    """Meet the other ranks and give the world, in which no device has been used yet."""
    torch_backend = chosen(backend)
    watchdog.says("the ranks' search for one another")
    store = _store(me, timeout_seconds)
    watchdog.claim = claim_in(_another(store), me.rank)
    world = World(me.rank, me.size, torch_backend, None, (), store, watchdog)
    world.hosts = tuple(world.exchange(socket.gethostname()))
    yield world
    _leave()


def connect(world: World, me: PlaceInWorld, timeout_seconds: float) -> None:
    """Take the device, and make the process group that is measured."""
    import torch
    from torch import distributed

    from rank_probe.torch_hooks.store import PrefixStore

    world.says("the making of the process group")
    world.device = torch.device("cpu")
    if world.backend == "nccl":
        world.device = torch.device("cuda", _gpu(me.local_rank, torch.cuda.device_count()))
        torch.cuda.set_device(world.device)
    distributed.init_process_group(
        world.backend,
        store=PrefixStore("group", world.store),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout_seconds + LATER_SECONDS),
    )
    world.barrier()


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


def _gpu(local_rank: int, count: int) -> int:
    if local_rank >= count:
        raise CannotMeasure(
            f"local rank {local_rank} finds {count} GPUs on its node, and NCCL needs one for each "
            "rank: start fewer ranks per node"
        )
    return local_rank


def _store(me: PlaceInWorld, timeout_seconds: float) -> Any:
    from torch.distributed.rendezvous import rendezvous

    from rank_probe.torch_hooks.store import PrefixStore

    os.environ |= {"RANK": str(me.rank), "WORLD_SIZE": str(me.size)}
    patience = timedelta(seconds=timeout_seconds + LATER_SECONDS)
    store, _, _ = next(iter(rendezvous("env://", timeout=patience)))
    store.set_timeout(patience)
    return PrefixStore("rankskew-bench-collectives", store)


def _another(store: Any) -> Any:
    """Return a second connection: the first serves one caller at a time, which may be blocked."""
    clone = getattr(store, "clone", None)
    return store if clone is None else clone()


def _leave() -> None:
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _fields(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{value!r} cannot be told to other ranks")
