"""Samples what the exporter knows of its ranks, their GPUs and the node into the ring."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

from exporter.evidence import gpu as gpu_facts
from exporter.evidence.gpu import GpuReadings
from exporter.evidence.node import Latest, NodeReadings
from exporter.evidence.rank import RankReadings
from exporter.evidence.ring import Increment, Ring
from exporter.nvml.sample import GpuSample, NvmlSource
from exporter.processes.background import WatchHangs
from exporter.processes.foreign import foreign
from exporter.processes.host_watch import HostCost, HostWatch, to_follow
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankJoin, RankOnGpu, numa_local
from exporter.ranks.store import HeldRank, RankKey, RankStore
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.text import printable

NODE: Final = "node"
FOREIGN: Final = "gpu_foreign_processes"
# Least weight per second of a mean: segments, seconds in which workers want a CPU, bytes.
LEAST: Final = {
    "node_tcp_retransmitted_ratio": 100.0,
    "workers_run_queue_ratio": 0.05,
    "node_network_waiting_ratio": 1e6,
}
KNOWN: Final = frozenset(FIGURES)


class Sampler:
    """Reads its sources at each call of sample(); for the event loop, where the *store* is.

    *latest* gives the newest samples of the node's collectors. *host* follows the ranks from the
    first sample on.
    """

    def __init__(
        self,
        store: RankStore,
        nvml: NvmlSource,
        join: RankJoin,
        host: HostWatch,
        latest: Latest,
    ) -> None:
        self._store = store
        self._nvml = nvml
        self._join = join
        self._host = host
        self._node = NodeReadings(latest)
        self._ring = Ring(LEAST)
        self._gpus: dict[str, GpuReadings] = {}
        self._ranks: dict[Hashable, RankReadings] = {}
        self._places: Mapping[RankKey, RankOnGpu] = {}
        self._costs: Mapping[RankKey, HostCost] = {}
        self._foreign: dict[RankKey, str] = {}

    def sample(self, now: float) -> None:
        """Add what is new; *now* is the store's clock."""
        held = self._store.ranks()
        self._find_places()
        self._host.follow(to_follow(self._places.values(), held))
        self._ring.add(NODE, now, self._node.read())
        self._read_gpus(now)
        self._read_ranks(held, now)
        self._ring.keep({NODE, *map(_of_gpu, self._gpus), *self._ranks})

    def figures(self, rank: HeldRank, since: float, until: float = math.inf) -> dict[str, float]:
        """Return the means in that time: of the rank, its GPU and the node."""
        means = {**self._ring.means(NODE, since, until), **self._of_gpu_of(rank, since, until)}
        means |= self._ring.means(_of_rank(rank), since, until)
        return {name: each for name, each in means.items() if name in KNOWN}

    def facts(self, rank: HeldRank, since: float) -> dict[str, str]:
        """Return for people what these figures are of."""
        facts = dict(self._node.facts)
        place = self.place(rank)
        if place is not None and place.gpu is not None:
            facts |= gpu_facts.facts_of(place.gpu, self._of_gpu_of(rank, since))
        others = self._foreign.get(rank.key)
        return facts | {FOREIGN: others} if others else facts

    def covered_seconds(self, rank: HeldRank, since: float, until: float = math.inf) -> float:
        """Return for how much of that time the rank has been sampled."""
        return self._ring.covered_seconds(_of_rank(rank), since, until)

    def place(self, rank: HeldRank) -> RankOnGpu | None:
        """Return the GPU and the process of *rank*, None if neither is known."""
        return self._places.get(rank.key)

    def pid(self, rank: HeldRank) -> int | None:
        """Return the id of its process as this exporter sees it; None if it does not see it."""
        place, cost = self.place(rank), self._costs.get(rank.key)
        if place is not None and place.process is not None:
            return place.process.pid
        return cost.pid if cost is not None and cost.pid else None

    def _find_places(self) -> None:
        try:
            found = self._join.ranks()
        except WatchHangs:  # Its collector says so; GPUs are known from the ranks' own reports.
            return
        self._places = {(each.job_id, each.rank): each for each in found}

    def _read_gpus(self, now: float) -> None:
        sample = self._nvml.latest()
        for gpu in () if sample is None else sample.gpus:
            if sample is not None and gpu.uuid:
                readings = self._gpus.setdefault(gpu.uuid, GpuReadings())
                self._ring.add(_of_gpu(gpu.uuid), now, readings.read(gpu, sample.monotonic_seconds))
        if sample is not None:
            listed = {gpu.uuid for gpu in sample.gpus}
            self._gpus = {uuid: each for uuid, each in self._gpus.items() if uuid in listed}

    def _read_ranks(self, held: Sequence[HeldRank], now: float) -> None:
        looked, costs = self._look()
        self._costs = costs
        self._ranks = {
            subject: self._ranks.get(subject) or RankReadings() for subject in map(_of_rank, held)
        }
        self._foreign = {}
        for rank in held:
            subject = _of_rank(rank)
            readings, cost, place = self._ranks[subject], costs.get(rank.key), self.place(rank)
            found = list(readings.read_steps(rank))
            if cost is not None:
                near = None if place is None else numa_local(place.gpu, place.process)
                found += readings.read_host(cost, looked, near)
            if place is not None and place.gpu is not None:
                found += self._others_on(place.gpu, rank)
            self._ring.add(subject, now, found)

    def _look(self) -> tuple[float, Mapping[RankKey, HostCost]]:
        try:
            look = self._host.latest()
        except WatchHangs:  # The collector of the ranks' costs says so.
            look = None
        if look is None:
            return 0.0, {}
        return look.seconds, {(who[0], int(who[2])): cost for who, cost in look.costs.items()}

    def _others_on(self, gpu: GpuSample, rank: HeldRank) -> Iterator[Increment]:
        """Yield how many other processes and ranks compute on the GPU of *rank* now."""
        try:
            processes = self._join.processes()
        except WatchHangs:
            return
        places, place = list(self._places.values()), self.place(rank)
        others = foreign(gpu, places, processes)
        if others is None:
            return
        names = [_described(each) for each in others]
        if gpu.mig_devices is None:
            names += [
                f"rank {each.rank} of job {each.job_id}"
                for each in places
                if each.gpu_uuid == gpu.uuid
                and (each.job_id, each.rank) != rank.key
                and each.process not in others
                and (each.process is not None or place is None or place.process is None)
            ]
        if names:
            self._foreign[rank.key] = ", ".join(names[:2])
        yield Increment(FOREIGN, len(names), 1.0)

    def _of_gpu_of(self, rank: HeldRank, since: float, until: float = math.inf) -> dict[str, float]:
        place = self.place(rank)
        uuid = rank.snapshot.rank_info.get("gpu_uuid", "") if place is None else place.gpu_uuid
        return self._ring.means(_of_gpu(uuid), since, until)


def _described(process: Process) -> str:
    # Not the user's name: looking it up may query a server. The process chose its own name.
    user = "" if process.uid is None else f" of user {process.uid}"
    return f"{printable(process.name)}, PID {process.pid}{user}"


def _of_rank(rank: HeldRank) -> Hashable:
    """Return the subject of a rank; a restarted rank is a new subject that counts from zero."""
    return (*rank.key, rank.snapshot.started_timestamp_seconds)


def _of_gpu(uuid: str) -> Hashable:
    return "gpu", uuid
