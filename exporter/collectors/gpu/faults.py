"""GPU faults: what is wrong with each GPU, told to each rank on it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.gpu_faults.fault import (
    FOREIGN_PROCESS,
    MEMORY,
    NUMA,
    ROW_REMAP_PENDING,
    SHARED,
    UNUSED,
    Fault,
    Told,
    Who,
)
from exporter.gpu_faults.now import NvmlHealth, lost, standing
from exporter.gpu_faults.over_time import TEN_MINUTES, GpuMemory, Gpus
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import GpuSample, NvmlSource
from exporter.processes.background import WatchHangs
from exporter.processes.foreign import foreign_processes
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, RankOnGpu, numa_local
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds

# A rank dies with its GPU; for this long, the GPU's faults are still reported for the rank.
REMEMBERED_SECONDS: Final = 600.0
# Far more ranks than a node runs; if new ones start all the time, the last ones are kept.
MOST_REMEMBERED: Final = 256
# A rank that is not bound has an even share of the near CPUs: at most half.
UNBOUND: Final = 0.5

# A rank that died or moved away is silent on its old node; its GPU is no longer its own.
GONE_SECONDS: Final = 60.0
NOBODY: Final[Who] = ("", "", "")


class Tenants:
    """Which ranks were on which GPU in the last ten minutes."""

    def __init__(self) -> None:
        # By GPU, job and rank; the last ones that were seen are last.
        self._seen: dict[tuple[str, str, int], tuple[Who, float]] = {}

    def see(self, ranks: Iterable[RankOnGpu], now: float) -> None:
        """Remember that *ranks* are on their GPUs."""
        for rank in ranks:
            key = rank.gpu_uuid, rank.job_id, rank.rank
            self._seen.pop(key, None)
            self._seen[key] = identity(rank), now
        recent = [each for each in self._seen.items() if now - each[1][1] <= REMEMBERED_SECONDS]
        self._seen = dict(recent[-MOST_REMEMBERED:])

    def of(self, gpu_uuid: str) -> list[Who]:
        """Return the ranks of a GPU, in order."""
        return sorted(who for (uuid, *_), (who, _) in self._seen.items() if uuid == gpu_uuid)


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


def was_given(rank: RankOnGpu, gpu: GpuSample) -> bool:
    """Whether a scheduler says so; CUDA_VISIBLE_DEVICES may be a cgroup's numbering or a user's."""
    environment = (rank.process and rank.process.environment) or {}
    numbers = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS", "")
    uuids = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    return str(gpu.minor_number) in numbers.split(",") or gpu.uuid in uuids.split(",")


class GpuFaultsCollector:
    """Expose the faults as of now; call from the event loop, as RankJoin requires.

    It remembers what it has seen, so it must be called about once a scrape. *node_name* is a label
    of each fault, for the texts of alerts.
    """

    name = "gpu_faults"
    interval_seconds = 0.0

    def __init__(
        self,
        join: RankJoin,
        store: RankStore,
        nvml: NvmlSource,
        expected: ExpectedGpus,
        thresholds: Thresholds,
        node_name: str,
    ) -> None:
        self._join = join
        self._store = store
        self._nvml = nvml
        self._expected = expected
        self._thresholds = thresholds
        self._node_name = node_name
        self._memory = GpuMemory()
        self._tenants = Tenants()
        self._last: dict[str, RankOnGpu] = {}  # By GPU, while its allocation goes on.
        self._unused_since: dict[tuple[str, str, str], float] = {}
        self._reading = NvmlHealth(nvml, expected)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "rankskew_gpu_fault",
            "What is wrong with the GPU, once for each rank on it now or in the last ten minutes, "
            "else without a rank; only while there is a fault. Always 1, but for throttled the "
            "share of the last five minutes, and for pcie_saturated that of the link's bandwidth. "
            "detail is the number of an XID, the reason for throttling, the links that are down, "
            "what the driver advises, how many GPUs there are where some are missing, or why none "
            "can be read (NVML, /proc).",
            labels=["gpu", "gpu_uuid", "fault", "detail", "nodename", *IDENTITY],
        )
        for gpu, rank, fault in self.told():
            labels = [*gpu, fault.fault, fault.detail, self._node_name, *rank]
            family.add_metric(labels, fault.share)
        yield family

    def told(self) -> Iterator[Told]:
        """Yield the faults as of now; those of use are left out while reading processes hangs."""
        now = self._store.now()
        sample = self._nvml.latest()
        try:
            ranks = self._living(now)
        except WatchHangs:
            ranks = None
        self._tenants.see(ranks or [], now)
        gpus = {} if sample is None else {gpu.uuid or str(gpu.index): gpu for gpu in sample.gpus}
        if sample is not None:
            self._memory.see(gpus, now, sample.worker_pid)
        self._reading.see(now)
        if (unread := self._reading.fault()) is not None:
            yield ("", ""), NOBODY, unread
        for gpu, fault in lost(sample, self._expected):
            yield from self._to_ranks(gpu, [fault])
        for key, reading in gpus.items():
            named = str(reading.index), reading.uuid
            found = [*standing(reading), *self._memory.faults(key, gpus, now)]
            yield from self._to_ranks(named, _once(found))
            if ranks is not None:
                yield from self._of_use(reading, ranks)
        if ranks is not None:
            yield from self._unused(gpus, ranks, now)

    def _living(self, now: float) -> list[RankOnGpu]:
        gone = {
            held.key
            for held in self._store.ranks()
            if held.is_silent(now) and now - held.received_seconds > GONE_SECONDS
        }
        return [rank for rank in self._join.ranks() if (rank.job_id, rank.rank) not in gone]

    def _to_ranks(self, gpu: tuple[str, str], faults: Iterable[Fault]) -> Iterator[Told]:
        ranks = self._tenants.of(gpu[1]) or [NOBODY]
        for fault in faults:
            for rank in ranks:
                if not fault.threshold or fault.figure > self._thresholds.value(
                    fault.threshold, rank[0]
                ):
                    yield gpu, rank, fault

    def _unused(self, gpus: Gpus, ranks: list[RankOnGpu], now: float) -> Iterator[Told]:
        """Yield the GPUs that a job holds without running a process on them.

        Its ranks are on other GPUs here, or have ended while their allocation goes on.
        """
        going = {process.cgroup.allocation for process in self._join.processes().values()} - {""}
        on_gpus = {rank.gpu_uuid: rank for rank in ranks}
        last = on_gpus | self._last | on_gpus  # The newest first.
        self._last = {uuid: rank for uuid, rank in last.items() if rank.allocation in going}
        was_on = {uuid: rank.allocation for uuid, rank in self._last.items()}
        newest = {rank.allocation: rank for rank in (*reversed(self._last.values()), *ranks)}
        idle = [gpu for gpu in gpus.values() if gpu.processes == () and gpu.mig_devices is None]
        held = {
            (str(gpu.index), gpu.uuid, rank.job_id)
            for rank in (*ranks, *newest.values())
            for gpu in idle
            if rank.allocation and (was_on.get(gpu.uuid) == rank.allocation or was_given(rank, gpu))
        }
        self._unused_since = {key: self._unused_since.get(key, now) for key in sorted(held)}
        for (index, uuid, job_id), since in self._unused_since.items():
            if now - since >= TEN_MINUTES:  # A job loads, or restarts, in less.
                yield (index, uuid), (job_id, "", ""), Fault(UNUSED)

    def _of_use(self, gpu: GpuSample, ranks: list[RankOnGpu]) -> Iterator[Told]:
        """Yield the faults of how the ranks that are on *gpu* now use it."""
        named = str(gpu.index), gpu.uuid
        here = [rank for rank in ranks if rank.gpu_uuid == gpu.uuid]
        # Anyone can report a rank that is not there: where processes are seen, they count.
        here = [rank for rank in here if rank.process is not None] or here
        shared = list(of_all_ranks(gpu, here, self._join.processes())) if here else []
        for rank in here:
            for fault in (*shared, *of_one_rank(rank, self._thresholds)):
                yield named, identity(rank), fault


def _once(faults: list[Fault]) -> Iterator[Fault]:
    """Yield *faults* with one of the memory at most; a row that waits for a reset comes last."""
    of_memory = [fault for fault in faults if fault.fault in (MEMORY, ROW_REMAP_PENDING)]
    if of_memory:
        yield min(of_memory, key=lambda fault: fault.fault == ROW_REMAP_PENDING)
    yield from (fault for fault in faults if fault not in of_memory)
