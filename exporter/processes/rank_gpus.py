"""Which rank runs on which GPU, from the probes' reports and the processes on the GPUs."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from exporter.ingest.values import LABEL_CHARACTERS
from exporter.listeners.peer import NAMESPACE_OF, UNKNOWN, Peer
from exporter.nvml.sample import GpuSample, NvmlSource
from exporter.processes.process import Process
from exporter.ranks.store import HeldRank, RankStore
from rank_probe.process import identity
from rank_probe.process.identity import Identity

logger = logging.getLogger(__name__)

# The values of the label `source`: the probe named the GPU, or NVML lists a process on it that was
# started as this rank.
PROBE: Final = "probe"
ENVIRON: Final = "environ"

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RankOnGpu:
    """One rank and its GPU. *gpu* is None if NVML does not know that GPU (now).

    *process* is None if the probe named the GPU and the rank's process was not found on it.
    """

    job_id: str
    peer_group: str
    rank: int
    local_rank: str
    source: str
    gpu_uuid: str
    gpu: GpuSample | None = None
    process: Process | None = None

    @property
    def allocation(self) -> str:
        """The allocation that its process's cgroup shows; '' if unknown."""
        return "" if self.process is None else self.process.cgroup.allocation


@dataclass(frozen=True, slots=True)
class _Claim:
    """A process on a GPU that was started as a rank."""

    gpu: GpuSample
    process: Process
    who: Identity
    used_bytes: int


class RankJoin:
    """Joins the three sources; call from the event loop, where the rank store lives.

    One instance serves every caller. Its result is cached while the sources do not change, which is
    as long as NVML's sample lasts. *processes* is ProcessWatch.processes. The store's limits apply
    to reporting ranks and ranks without the probe together.
    """

    def __init__(
        self,
        nvml: NvmlSource,
        processes: Callable[[], Mapping[int, Process]],
        store: RankStore,
    ) -> None:
        self._nvml = nvml
        self.processes = processes
        self._store = store
        self._is_full_logged = False
        self._kept: tuple[object, Sequence[RankOnGpu]] = (None, ())

    def gpus(self) -> tuple[GpuSample, ...]:
        """Return the node's GPUs as NVML last saw them."""
        sample = self._nvml.latest()
        return () if sample is None else sample.gpus

    def ranks(self) -> Sequence[RankOnGpu]:
        """Return every rank of this node with a known GPU, by job and rank; each appears once.

        Raises WatchHangs, as *processes* does.
        """
        gpus, processes, held = self.gpus(), dict(self.processes()), self._store.ranks()
        sources = gpus, processes, [_reports(each) for each in held]
        if sources != self._kept[0]:
            self._kept = sources, self._joined(gpus, processes, held)
        return self._kept[1]

    def _joined(
        self, gpus: Sequence[GpuSample], processes: Mapping[int, Process], held: Sequence[HeldRank]
    ) -> Sequence[RankOnGpu]:
        found = {(rank.job_id, rank.rank): rank for rank in join(gpus, processes, held)}
        keys = {(each.snapshot.job_id, each.snapshot.rank) for each in held}
        groups = {(each.snapshot.job_id, each.snapshot.peer_group) for each in held}
        for key in sorted(found.keys() - keys):
            group = (key[0], found[key].peer_group)
            if self._has_room(keys | {key}, groups | {group}):
                keys.add(key)
                groups.add(group)
            else:
                del found[key]
        return [found[key] for key in sorted(found)]

    def _has_room(self, keys: set[Key], groups: set[tuple[str, str]]) -> bool:
        limits = self._store.limits
        if (
            len(keys) <= limits.ranks
            and len({job_id for job_id, _ in keys}) <= limits.jobs
            and len(groups) <= limits.peer_groups
        ):
            return True
        if not self._is_full_logged:
            self._is_full_logged = True
            logger.warning(
                "more ranks without the probe run on this node than the exporter may show: "
                "raise --ranks.max, --ranks.jobs-max or --ranks.peer-groups-max"
            )
        return False


def _reports(held: HeldRank) -> tuple[object, ...]:
    """Return all that join() reads of what a rank reports."""
    snapshot = held.snapshot
    where = snapshot.rank_info.get("gpu_uuid"), snapshot.rank_info.get("local_rank")
    who = snapshot.job_id, snapshot.peer_group, snapshot.rank, snapshot.pid, held.owner
    return *who, *where, snapshot.finished


def join(
    gpus: Sequence[GpuSample], processes: Mapping[int, Process], held: Iterable[HeldRank]
) -> list[RankOnGpu]:
    """Return the ranks with a known GPU, each once.

    The probe's report wins, unless a process other than the reporting one is on a GPU as this rank.
    Without a report, a rank's GPU is the one on which it holds the most memory: ranks that do not
    set their device first leave a context on GPU 0 too.
    """
    held = list(held)
    users: dict[str, set[int | None]] = {}
    for each in held:
        user = None if each.owner is None else each.owner.uid
        users.setdefault(each.snapshot.job_id, set()).add(user)
    claims = _claims(gpus, processes, held)
    ranks: list[RankOnGpu] = []
    for each in held:
        key = (each.snapshot.job_id, each.snapshot.rank)
        theirs = [claim for claim in claims.pop(key, []) if may_be(claim.process, each.owner)]
        ranks += _reported(each, theirs, gpus, processes)
    for (job_id, _), theirs in claims.items():  # Anyone can write anyone else's job_id.
        known = users.get(job_id, {None})
        own = [each for each in theirs if None in known or each.process.uid in (None, *known)]
        ranks += [_started(_best(own))] if own else []
    return ranks


def _claims(
    gpus: Sequence[GpuSample], processes: Mapping[int, Process], held: Sequence[HeldRank]
) -> dict[Key, list[_Claim]]:
    """Return the processes that claim to be each rank, under the name that its probe knows.

    The probe may know a better name: the one that the script gave the job, or the pod's namespace.
    """
    claims: dict[Key, list[_Claim]] = {}
    for gpu in gpus:
        for listed in gpu.processes or ():
            process = processes.get(listed.pid)
            who = None if process is None else started_as(process)
            if process is not None and who is not None:
                claim = _Claim(gpu, process, who, listed.used_bytes or 0)
                known = (each.snapshot for each in held if is_reporter(process, each))
                named = next(known, who)
                claims.setdefault((named.job_id, named.rank), []).append(claim)
    return claims


def started_as(process: Process) -> Identity | None:
    """Return the rank that the launcher started *process* as; None for any other process.

    A name that is not a valid label makes it no rank: as on ingest, names are never truncated.
    """
    return _started_with(frozenset((process.environment or {}).items()))


# Asked for each process each second, while an environment never changes.
@lru_cache(maxsize=1024)
def _started_with(environment: frozenset[tuple[str, str]]) -> Identity | None:
    who = identity.from_environment(dict(environment))
    if who is None or not who.job_id:
        return None
    longest = max(map(len, (who.job_id, who.peer_group, who.local_rank)))
    return who if longest <= LABEL_CHARACTERS else None


def _reported(
    held: HeldRank,
    claims: list[_Claim],
    gpus: Sequence[GpuSample],
    processes: Mapping[int, Process],
) -> list[RankOnGpu]:
    """Return where a rank runs whose probe reports; empty if unknown."""
    snapshot = held.snapshot
    same = [claim for claim in claims if claim.process.namespace_pid == snapshot.pid]
    if snapshot.finished:  # Whatever the process still does is not training.
        claims = [claim for claim in claims if claim not in same]
    if claims and (snapshot.finished or not same):
        return [_started(_best(claims))]
    uuid = snapshot.rank_info.get("gpu_uuid", "")
    if same and all(gpu.uuid != uuid for gpu in gpus):
        uuid = ""  # For example of a MIG instance, which can only be joined to its GPU.
    if snapshot.finished or not (uuid or same):
        return []
    gpu = next((gpu for gpu in gpus if gpu.uuid == uuid), None) if uuid else _best(same).gpu
    process = same[0].process if same else _process_on(gpu, held, processes)
    return [
        RankOnGpu(
            snapshot.job_id,
            snapshot.peer_group,
            snapshot.rank,
            snapshot.rank_info.get("local_rank") or (same[0].who.local_rank if same else ""),
            PROBE if uuid else ENVIRON,
            uuid or ("" if gpu is None else gpu.uuid),
            gpu,
            process,
        )
    ]


def _process_on(
    gpu: GpuSample | None, held: HeldRank, processes: Mapping[int, Process]
) -> Process | None:
    """Return the process of a rank that was not started as one: by its own id, on its own GPU."""
    listed = () if gpu is None else gpu.processes or ()
    found = (processes.get(each.pid) for each in listed)
    return next(
        (
            process
            for process in found
            if process is not None
            and process.namespace_pid == held.snapshot.pid
            and may_be(process, held.owner)
        ),
        None,
    )


def is_reporter(process: Process, held: HeldRank) -> bool:
    """Whether *process*, which has the id that a rank reports, is that rank.

    The id belongs to the rank's PID namespace; in ours, another process may have it. Over TCP the
    user is unknown too, so only the launcher's variables prove the match.
    """
    snapshot = held.snapshot
    if process.environment is None or process.namespace_pid != snapshot.pid:
        return False
    who = started_as(process)
    if held.owner is None:
        # Only the probe reads the pod's namespace where no variable has it.
        names = (snapshot.job_id, snapshot.job_id.partition("/")[2])
        return who is not None and who.job_id in names and who.rank == snapshot.rank
    return may_be(process, held.owner) and (who is None or who.rank == snapshot.rank)


def may_be(process: Process, owner: Peer | None) -> bool:
    """Whether *process* can be a rank of *owner*: anyone can write anyone else's job_id."""
    if owner is None or process.uid is None:
        return True
    known = not owner.container.startswith(NAMESPACE_OF)  # Which a Process does not tell.
    place = owner.container if known else ""
    return owner.uid == process.uid and place in ("", UNKNOWN, process.cgroup.container)


def _best(claims: list[_Claim]) -> _Claim:
    """Return the claim to believe: of the user who came first, the one with the most memory."""
    first = min(claims, key=lambda claim: claim.process.start_ticks)
    mine = [claim for claim in claims if claim.process.uid == first.process.uid]
    # If NVML does not report memory (MIG, WSL), prefer the GPU whose index is the local rank.
    return min(
        mine, key=lambda c: (-c.used_bytes, str(c.gpu.index) != c.who.local_rank, c.gpu.index)
    )


def _started(claim: _Claim) -> RankOnGpu:
    named = (claim.process.environment or {}).get("RANKSKEW_PEER_GROUP")
    # As in the probe, so that a job with the probe on only some nodes has a single name.
    group = named or identity.peer_group({}, claim.gpu.name)
    who = claim.who
    return RankOnGpu(
        who.job_id,
        group[:LABEL_CHARACTERS],
        who.rank,
        who.local_rank,
        ENVIRON,
        claim.gpu.uuid,
        claim.gpu,
        claim.process,
    )


def numa_local(gpu: GpuSample | None, process: Process | None) -> float | None:
    """Return the share of the process's CPUs that are near the GPU; None if unknown."""
    if gpu is None or gpu.numa_node is None or not gpu.cpu_affinity:
        return None
    if process is None or not process.cpus:
        return None
    return len(process.cpus.intersection(gpu.cpu_affinity)) / len(process.cpus)
