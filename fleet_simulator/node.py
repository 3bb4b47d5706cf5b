"""A simulated node: a real store, collectors, live page and web application, made-up readings."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import psutil
from prometheus_client.metrics_core import Metric
from starlette.types import ASGIApp

from exporter.collectors.base import Collector
from exporter.collectors.catalog import Sources, collectors
from exporter.collectors.gpu.faults import GpuFaultsCollector
from exporter.evidence.job_changes import ChangeCauses
from exporter.evidence.late_causes import LateCauses
from exporter.evidence.sampler import Sampler
from exporter.evidence.service import EvidenceService
from exporter.ingest.app import IngestCounts
from exporter.live.page import LiveView, PageNode
from exporter.nvml.expected import ExpectedGpus
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.scrape.exposition import Exposition
from exporter.scrape.levels import Shown
from exporter.scrape.sampling import CollectorRun, Scrape, Source
from exporter.settings import Settings
from exporter.web.app import web_app
from fleet_simulator.faults import Silence
from fleet_simulator.hardware import (
    HostFiles,
    SimulatedHost,
    SimulatedNvml,
    SimulatedWorkers,
    gpu_uuid,
    processes,
)
from fleet_simulator.plan import node_name
from fleet_simulator.ranks import SimulatedRank
from fleet_simulator.training import RUN_SECONDS, JoinedFigures, Judged, Training, of_peers

PORT: Final = 9917
# The page shows more of the past, but collecting evidence for all of it would delay the start.
EVIDENCE_SECONDS: Final = 30.0
PAST_SECONDS: Final = 60.0


class SimulatedNode:
    """Node *node* of a fleet, with its ranks of *training*; call it from the event loop only.

    Its ranks report at each time in *past*, so that the page has a history. *unix_start* is the
    start of the simulation, in Unix seconds. *detail* is the node's --series.detail.
    """

    def __init__(
        self,
        training: Training,
        judged: Judged,
        joined: JoinedFigures,
        node: int,
        directory: Path,
        unix_start: float,
        past: Iterable[float],
        detail: frozenset[str] = frozenset(),
    ) -> None:
        self.name = node_name(node)
        self._training = training
        self._judged = judged
        self._joined = joined
        self._node = node
        self._unix_start = unix_start
        self._at = -RUN_SECONDS
        self._files = HostFiles(directory, training, node)
        self._counts = IngestCounts()
        self._store = RankStore(clock=lambda: self._at)
        jobs = NodeJobs(self._store)
        plan = training.plan
        first = (node - plan.first_node) * plan.gpus
        self._ranks = {
            gpu: SimulatedRank(training, first + gpu, gpu_uuid(node, gpu), unix_start)
            for gpu in range(plan.gpus)
        }
        self._nvml = SimulatedNvml(training, node, unix_start)
        found = processes(plan, node)
        host = self._host = SimulatedHost(training)
        self._workers = SimulatedWorkers(training)
        causes, changes = LateCauses(), ChangeCauses()
        procfs, sysfs = self._files.mounts
        sources = Sources(
            Settings(path_procfs=str(procfs), path_sysfs=str(sysfs)),
            self._store,
            self._counts,
            self._nvml,
            ExpectedGpus(number=plan.gpus),
            jobs=jobs,
            causes=causes,
            changes=changes,
            processes=lambda: found,
            host=host,
            node_name=self.name,
        )
        made = collectors(sources)
        scrape = _Scrape(made, self._reading_here, lambda: unix_start + self._at, Shown(detail))
        self.exposition = Exposition(scrape)
        faults = (each.told for each in made if isinstance(each, GpuFaultsCollector))
        page = PageNode(self.name, None, sources.join, *faults)
        self._live = LiveView(jobs, lambda: plan.gpus, page, causes.of, changes.of)
        sampler = Sampler(self._store, self._nvml, sources.join, host, scrape.latest)
        evidence = EvidenceService(
            self._store, jobs, sampler, host, causes, self._workers, self.name, changes=changes
        )
        # One usual node collects the evidence for all usual nodes.
        self._evidence = None if self.is_usual and node != plan.first_node + 1 else evidence
        for at in past:
            self.advance(at)

    @property
    def instance(self) -> str:
        """Return the label `instance` that discovery gives it."""
        return f"{self.name}:{PORT}"

    @property
    def names(self) -> list[str]:
        """Return the labels that only its own series have, in the order of its GPUs."""
        node_rank = self._node - self._training.plan.first_node
        each = (name for rank in self._ranks.values() for name in rank.names)
        return [f'nodename="{self.name}"', f'node_rank="{node_rank}"', *each]

    @property
    def is_usual(self) -> bool:
        """Return whether the node differs from others of its job in names only.

        The first node never counts as usual: a fault of the whole job is there.
        """
        plan = self._training.plan
        faulty = {fault.node for fault in plan.faults}
        return self._node != plan.first_node and self._node not in faulty

    @property
    def about(self) -> str:
        """Return the node's job and faults in words."""
        plan = self._training.plan
        faults = [each.kind.about for each in plan.faults if each.has(self._node, each.gpu)]
        return "; ".join([f"job {plan.job_id}", *faults])

    def advance(self, at: float) -> None:
        """Let the node reach the time *at* of the simulation: its ranks report, the page looks."""
        if at <= self._at:
            return
        self._at = self._host.at = self._workers.at = at
        self._nvml.advance(at)
        if not (self.has(Silence.UNSEEN) or self._training.has(Silence.UNPROBED, at)):
            self._push(at)
        # A job that becomes slower is compared with its own past.
        changes_soon = any(
            each.kind.slows_all and 0 <= each.begins_seconds - at <= PAST_SECONDS
            for each in self._training.plan.faults
        )
        if self._evidence is not None and (at >= -EVIDENCE_SECONDS or changes_soon):
            with self._reading_here():
                self._evidence.look(at)
        self._live.sample(at, self._unix_start + at)

    def _push(self, at: float) -> None:
        said = self._judged.at(at)
        late = () if said is None else [each.rank for each in said.verdict.late]
        for gpu, rank in self._ranks.items():
            if not self.has(Silence.FROZEN, gpu):
                snapshot = rank.snapshot(at, said, lambda: of_peers(self._joined, late))
                self._store.put(snapshot)
                self._counts.results["accepted"] += 1
                told = {} if self._evidence is None else self._evidence.pushed(snapshot)
                if told.get("figures") is not None:
                    self._joined[snapshot.rank] = told["figures"]

    def app(self) -> ASGIApp:
        """Return the web application of its exporter."""
        return web_app(self.exposition, self._live, lambda: None, lambda: None)

    def has(self, silence: Silence, gpu: int = 0) -> bool:
        """Return whether a fault with that effect is on *gpu*, or on the whole node or job."""
        faults = self._training.phase(self._at).faults
        return any(each.kind.silence is silence and each.has(self._node, gpu) for each in faults)

    @contextmanager
    def _reading_here(self) -> Iterator[None]:
        """Let psutil, which has one path per process, read this node's files."""
        self._files.show(self._at)
        before = psutil.PROCFS_PATH
        psutil.PROCFS_PATH = str(self._files.mounts.procfs)
        try:
            yield
        finally:
            psutil.PROCFS_PATH = before


class _Scrape(Scrape):
    """Collects inside the context that *around* returns; *clock* is the simulation's.

    It has no threads: latest() takes the sample itself, so its caller must be inside that context.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        around: Callable[[], AbstractContextManager[None]],
        clock: Callable[[], float],
        shown: Shown,
    ) -> None:
        super().__init__(collectors, monotonic=clock, wall=clock, shown=shown)
        self._around = around
        self._known: dict[str, CollectorRun] = {}

    def collect(
        self, names: Collection[str] | None = None, deadline: float | None = None
    ) -> Iterator[Metric]:
        """Yield what the collectors say."""
        with self._around():
            yield from super().collect(names, deadline)

    def latest(self, name: str) -> CollectorRun | None:
        """Return a current sample of the collector *name*; None if there is no such collector."""
        found = (source for source in self._sources if source.collector.name == name)
        return next(map(self._to_show, found), None)

    def _to_show(self, source: Source) -> CollectorRun | None:
        # As often as in the background: some collectors report changes since their last sample.
        name, interval = source.collector.name, source.collector.interval_seconds
        known = self._known.get(name)
        if known is None or self.monotonic() - known.sampled_seconds >= interval:
            known = self._known[name] = source.sample()
        return known
