"""The ranks on each GPU, now and until recently, and the faults of how they use it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from exporter.gpu_faults.fault import FOREIGN_PROCESS, NUMA, SHARED, Fault
from exporter.nvml.sample import GpuSample
from exporter.processes.foreign import foreign_processes
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankOnGpu, numa_local
from exporter.vocabulary.thresholds import Thresholds

# A rank dies with its GPU: for so long it is still told of the GPU's faults.
REMEMBERED_SECONDS: Final = 600.0
# A rank that is not bound has an even share of the near CPUs: at most half.
UNBOUND: Final = 0.5

# job_id, peer_group, rank.
Who = tuple[str, str, str]


class Tenants:
    """Which ranks were on which GPU in the last ten minutes."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[Who, float]] = {}

    def see(self, ranks: Iterable[RankOnGpu], now: float) -> None:
        """Remember that *ranks* are on their GPUs."""
        for rank in ranks:
            self._seen.setdefault(rank.gpu_uuid, {})[who(rank)] = now
        self._seen = {
            uuid: kept
            for uuid, seen in self._seen.items()
            if (kept := {who: at for who, at in seen.items() if now - at <= REMEMBERED_SECONDS})
        }

    def of(self, gpu_uuid: str) -> list[Who]:
        """Return the ranks of a GPU, in order."""
        return sorted(self._seen.get(gpu_uuid, ()))


def who(rank: RankOnGpu) -> Who:
    """Return the labels that name *rank*."""
    return rank.job_id, rank.peer_group, str(rank.rank)


def of_all_ranks(
    gpu: GpuSample, here: Sequence[RankOnGpu], processes: Mapping[int, Process]
) -> Iterator[Fault]:
    """Yield the faults that concern every rank *here*, on *gpu*.

    For ranks on MIG devices only the whole GPU may be known, so they do not share it.
    """
    if len(here) > 1:
        if gpu.mig_devices is None:
            yield Fault(SHARED)
    elif foreign_processes(gpu, here, processes):
        yield Fault(FOREIGN_PROCESS)


def of_one_rank(rank: RankOnGpu, thresholds: Thresholds) -> Iterator[Fault]:
    """Yield the faults that concern *rank* alone."""
    share = numa_local(rank.gpu, rank.process)
    least = min(UNBOUND, thresholds.value("numa_local_ratio", rank.job_id))
    if share is not None and share < least:
        yield Fault(NUMA)
