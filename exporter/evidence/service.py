"""Keeps the evidence of this node's ranks, tells them their figures, and decides their causes."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from exporter.causes.explain import explain
from exporter.causes.model import Cause, Evidence, Lateness, ThreadState
from exporter.evidence.job_changes import ChangeCauses
from exporter.evidence.late_causes import LateCauses, RankPlace
from exporter.evidence.peers import peers_of
from exporter.evidence.ring import DEPTH_SECONDS
from exporter.evidence.sampler import Sampler
from exporter.processes.host_watch import HostWatch
from exporter.processes.worker_states import LateRankProcess, WorkerStates
from exporter.ranks.jobs import NodeJob
from exporter.ranks.late_enough import late_enough
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import HeldRank, RankKey, RankStore
from rank_probe.judge.verdict import NAMED, Late
from rank_probe.wire import stages
from rank_probe.wire.snapshot import Snapshot

DATA: Final = stages.STAGES[stages.DATA]
OTHER: Final = stages.STAGES[stages.OTHER]

# A verdict comes five seconds after the onset: the figures must reach back to it.
SAMPLE_SECONDS: Final = 2.0
# While a rank of this node is late and has no cause: its first page is seconds away.
HURRIED_SECONDS: Final = 1.0
# The timer calls once a second, now and then a little early.
EARLY_SECONDS: Final = 0.5
# As often as a rank posts its figures to its peers: rank_probe.join.figures.POST_SECONDS.
TELL_SECONDS: Final = 10.0
TOLD_WINDOW_SECONDS: Final = 30.0
# Until then, figures still cover the time before the onset, and only the threads were looked at.
FIGURES_KNOWN_SECONDS: Final = 3.0
# Workers need eight looks, a tenth of a second apart, after a sample that tells where they are.
WORKERS_KNOWN_SECONDS: Final = 3.0
# A rank whose loop has no loader needs a second to be sampled, and its judge a few steps.
STAGE_KNOWN_SECONDS: Final = 30.0
# The cause found before the workers were looked at; a person would read it first.
OF_WORKERS: Final = ("input", "workers")
# The figure for which it matters what the workers run.
SATURATED: Final = "saturated_workers"

# A job and a rank, and when its process started: the one before it has other figures.
Incarnation = tuple[str, int, float]


class EvidenceService:
    """Decides causes: call look() once a second, and every method from the *store*'s event loop.

    It writes its decisions to *causes*, those about whole jobs to *changes*, for all who show them.
    *page* is the address of this exporter's page, as others reach it.
    """

    def __init__(
        self,
        store: RankStore,
        jobs: NodeJobs,
        sampler: Sampler,
        host: HostWatch,
        causes: LateCauses,
        workers: WorkerStates | None = None,
        node_name: str = "",
        changes: ChangeCauses | None = None,
        page: str = "",
    ) -> None:
        self._store = store
        self._sampler = sampler
        self._host = host
        self._jobs = jobs
        self._causes = causes
        self._changes = ChangeCauses() if changes is None else changes
        self._workers = workers
        self._node_name, self._page = node_name, page
        self._sampled = float("-inf")
        self._told_at = float("-inf")
        self._to_tell: dict[Incarnation, dict[str, float]] = {}
        self._followed: dict[RankKey, float] = {}  # Since when, the ranks that are late.
        self._unnamed: set[RankKey] = set()  # Those of them that seemed to read no batches.
        self._unexplained: set[RankKey] = set()  # Those without a cause.

    def look(self, now: float) -> None:
        """Sample if it is due, and explain why late ranks are late; *now* is the store's clock."""
        jobs = self._jobs.now()
        late = _explained(jobs)
        keys = {rank.key for rank, _ in late}
        self._host.hurry(bool(late))
        self._causes.keep(keys)
        self._unexplained = {key for key in keys if self._causes.of(*key) is None}
        interval = HURRIED_SECONDS if self._unexplained else SAMPLE_SECONDS
        if now - self._sampled < interval - EARLY_SECONDS:
            return
        self._sampled = now
        self._sampler.sample(now)
        if self._workers is not None:
            self._workers.follow([each for rank, _ in late for each in self._process(rank)])
        self._decide(late, now)
        self._changes.look(jobs, self._sampler)
        if now - self._told_at >= TELL_SECONDS - EARLY_SECONDS:
            self._told_at = now
            self._to_tell = dict(self._figures(now))

    def pushed(self, snapshot: Snapshot) -> dict[str, Any]:
        """Process the push of *snapshot*; return what its rank is to pass on to its peers.

        Usually that is nothing. Figures are new every ten seconds, and computed beforehand, so that
        no push waits for them; the rank's place goes with them. A late rank without a cause is
        explained at once, because its page waits for that, but at most once between two looks.
        """
        key = snapshot.job_id, snapshot.rank
        if snapshot.thread_states and key in self._unexplained:
            self._unexplained.discard(key)
            self._decide(_explained(self._jobs.now()), self._store.now(), only=key)
        figures, cause = self._to_tell.pop(_incarnation(snapshot), None), self._causes.of(*key)
        if figures is None and cause is None:
            return {}
        why = {} if cause is None else asdict(replace(cause, others=()))
        at = {"node": self._node_name, "page": self._page, **why}
        return {"figures": figures, "whereabouts": at}

    def _figures(self, now: float) -> Iterator[tuple[Incarnation, dict[str, float]]]:
        for rank in self._store.ranks():
            means = self._sampler.figures(rank, now - TOLD_WINDOW_SECONDS)
            figures = {name: float(f"{each:.6g}") for name, each in means.items()}
            if figures:
                yield _incarnation(rank.snapshot), figures

    def _decide(
        self,
        late: Sequence[tuple[HeldRank, Late]],
        now: float,
        only: RankKey | None = None,
    ) -> None:
        keys = {rank.key for rank, _ in late}
        new = [rank for rank, _ in late if rank.key not in self._followed]
        unnamed = {each.key for each in new if DATA not in each.snapshot.stage_seconds}
        self._unnamed = self._unnamed & keys | unnamed
        self._followed = {key: self._followed.get(key, now) for key in keys}
        held = self._store.ranks()
        for rank, each in late:
            if only not in (None, rank.key) or self._may_be_data(rank, each, now):
                continue
            since = now - min(each.since_seconds, DEPTH_SECONDS)
            covered_seconds = self._sampler.covered_seconds(rank, since)
            if covered_seconds < FIGURES_KNOWN_SECONDS:
                continue
            cause = explain(
                Lateness(
                    each.stage, each.kind, each.ratio, each.gpus, is_alone=_is_alone(rank, held)
                ),
                self._evidence(rank, since),
                peers_of(rank.snapshot, self._peers_here(rank, held, keys, since, now)),
            )
            if cause is not None and self._is_too_early(rank.key, cause, now):
                continue
            # Its threads are only looked at once it is known to be late.
            seen_seconds = now - self._followed[rank.key]
            known_seconds = min(covered_seconds, seen_seconds)
            self._causes.take(rank.key, cause, self._place(rank), now, known_seconds)

    def _may_be_data(self, rank: HeldRank, late: Late, now: float) -> bool:
        """Return whether a rank that is late in `other` may turn out to read its batches there.

        Samples of its stack show that; a few steps later the judge calls the stage `data`.
        """
        key = rank.key
        if late.stage != OTHER or key not in self._unnamed:
            return False
        sampled = {each["stage"] for each in rank.snapshot.late_lines}
        is_open = OTHER not in sampled or DATA in sampled
        return is_open and now - self._followed[key] < STAGE_KNOWN_SECONDS

    def _is_too_early(self, key: RankKey, cause: Cause, now: float) -> bool:
        """Return whether *cause* blames loader workers that are yet to be looked at."""
        return (
            (cause.cause, cause.detail) == OF_WORKERS
            and self._workers is not None
            and not self._workers.of(*key)
            and now - self._followed[key] < WORKERS_KNOWN_SECONDS
        )

    def _evidence(self, rank: HeldRank, since: float) -> Evidence:
        snapshot, loader = rank.snapshot, rank.snapshot.loader
        workers = self._workers
        return Evidence(
            self._sampler.figures(rank, since),
            [ThreadState(**each) for each in snapshot.thread_states],
            () if workers is None else workers.of(snapshot.job_id, snapshot.rank),
            self._sampler.facts(rank, since) | ({SATURATED: loader} if loader else {}),
        )

    def _peers_here(
        self,
        rank: HeldRank,
        held: Iterable[HeldRank],
        late: Collection[RankKey],
        since: float,
        now: float,
    ) -> list[dict[str, float]]:
        """Return the figures of those of its peer group on this node that are not late."""
        mine = rank.snapshot
        return [
            self._sampler.figures(each, since)
            for each in held
            if (each.snapshot.job_id, each.snapshot.peer_group) == (mine.job_id, mine.peer_group)
            and each.key not in late
            and each.is_beating(now)
        ]

    def _place(self, rank: HeldRank) -> RankPlace:
        place = self._sampler.place(rank)
        gpu = None if place is None else place.gpu
        return RankPlace(
            peer_group=rank.snapshot.peer_group,
            node=self._node_name,
            gpu="" if gpu is None else str(gpu.index),
            gpu_uuid="" if gpu is None else gpu.uuid,  # A rank may report anything.
            pid=str(self._sampler.pid(rank) or rank.snapshot.pid),
            worker_pid=str((self._workers and self._workers.pid(*rank.key)) or ""),
        )

    def _process(self, rank: HeldRank) -> Iterable[LateRankProcess]:
        pid, snapshot = self._sampler.pid(rank), rank.snapshot
        if pid is not None:
            yield LateRankProcess(snapshot.job_id, snapshot.rank, pid, snapshot.loader)


def _explained(jobs: Iterable[NodeJob]) -> list[tuple[HeldRank, Late]]:
    """Return the late ranks to explain; those that only do a duty for all must be costly."""
    found = []
    for job in jobs:
        aged = job.verdict()
        told = late_enough(aged.verdict.late if aged else (), job.world_size or 0, job.threshold)
        found += [each for each in job.late() if each[1].kind in NAMED or each[1].rank in told]
    return found


def _is_alone(rank: HeldRank, held: Iterable[HeldRank]) -> bool:
    """Say whether no other rank of its job runs, or ran, among those *held* here."""
    job_id = rank.snapshot.job_id
    return not any(each.snapshot.job_id == job_id and each.key != rank.key for each in held)


def _incarnation(snapshot: Snapshot) -> Incarnation:
    return snapshot.job_id, snapshot.rank, snapshot.started_timestamp_seconds
