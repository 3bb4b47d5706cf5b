"""What the evidence costs the exporter: CPU of its looks and of the figures in answers, and memory.

Eight simulated ranks on eight GPUs, until the ring is full: nobody is late, then one, then all of
them, whose causes are decided at each look. What is read is there before a call is timed, as it is
in an exporter, whose threads read in the background.
"""

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.report import write
from exporter.collectors.catalog import Sources, makers
from exporter.evidence import ring
from exporter.evidence.late_causes import LateCauses
from exporter.evidence.node import COLLECTORS
from exporter.evidence.sampler import Sampler
from exporter.evidence.service import EvidenceService
from exporter.ingest.app import IngestCounts
from exporter.processes.host_watch import Look
from exporter.ranks.node_jobs import NodeJobs
from exporter.ranks.store import RankStore
from exporter.scrape.sampling import CollectorRun, Source
from exporter.settings import Settings
from fleet_simulator.faults.asked import parse
from fleet_simulator.hardware import (
    SimulatedHost,
    SimulatedNvml,
    SimulatedWorkers,
    gpu_uuid,
    processes,
)
from fleet_simulator.host_files import HostFiles
from fleet_simulator.judged import Judged
from fleet_simulator.plan import JobPlan
from fleet_simulator.ranks import SimulatedRank
from fleet_simulator.training import Training

GPUS = RANKS = 8
FILL_SECONDS: Final = round(ring.DEPTH_SECONDS) + 60
TIMED_SECONDS: Final = 300
READ_SECONDS: Final = 5  # How often the collectors of the node read.
# All ranks of the node are late if the fault is the node's.
FAULTS: Final = {"nobody": "", "one": "thermal:gpu=2", "all": "node"}


class PrimedHost(SimulatedHost):
    """Has looked before it is asked."""

    looked: Look | None = None

    def prime(self) -> None:
        """Look."""
        self.looked = super().latest()

    def latest(self) -> Look:
        """Return what the last look found."""
        return self.looked or super().latest()


class Timed:
    """A function, and the CPU time of each call of it in microseconds."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.times: list[float] = []

    def __call__(self, *arguments: Any) -> Any:
        before = time.thread_time()
        returned = self._function(*arguments)
        self.times.append((time.thread_time() - before) * 1e6)
        return returned


class Node:
    """The evidence of a node with eight GPUs, and all that it is made from."""

    def __init__(self, fault: str, directory: Path) -> None:
        faults = (parse(fault),) if fault else ()
        training = Training(JobPlan("bench", 0, 1, GPUS, faults))
        self._judged = Judged(training)
        self.now = 0.0
        self.store = RankStore(clock=lambda: self.now)
        self._ranks = [SimulatedRank(training, n, gpu_uuid(0, n), 0.0) for n in range(RANKS)]
        self._nvml = SimulatedNvml(training, 0, 0.0)
        self._host = PrimedHost(training, 0)
        self._files = HostFiles(directory, training, 0)
        self._workers = SimulatedWorkers(training, 0)
        self._samples: dict[str, CollectorRun] = {}
        found = processes(training.plan, 0)
        sampler = Sampler(self.store, self._nvml, lambda: found, self._host, self._samples.get)
        self.causes = LateCauses()
        jobs = NodeJobs(self.store)
        self._collectors = self._sources()
        service = EvidenceService(self.store, jobs, sampler, self._host, self.causes, self._workers)
        self.look, self.figures_for = Timed(service.look), Timed(service.figures_for)

    def run(self, seconds: int) -> None:
        """Let time pass: each second the ranks push, and the exporter looks."""
        for _ in range(seconds):
            self.now += 1.0
            self._read()
            said = self._judged.at(self.now)
            for rank in self._ranks:
                snapshot = rank.snapshot(self.now, said)
                self.store.put(snapshot)
                self.figures_for(snapshot)
            self.look(self.now)

    def _read(self) -> None:
        self._nvml.advance(self.now)
        self._host.at = self._workers.at = self.now
        self._host.prime()
        if self.now % READ_SECONDS == 0:
            with _psutil_at(self._files.mounts.procfs):
                self._files.show(self.now)
                self._samples |= {name: each.sample() for name, each in self._collectors.items()}

    def _sources(self) -> dict[str, Source]:
        procfs, sysfs = self._files.mounts
        settings = Settings(path_procfs=str(procfs), path_sysfs=str(sysfs))
        made = makers(Sources(settings, self.store, IngestCounts(), self._nvml))
        with _psutil_at(procfs):
            self._files.show(self.now)
            return {name: Source(made[name](), lambda: self.now) for name in COLLECTORS}


@contextmanager
def _psutil_at(procfs: Path) -> Iterator[None]:
    before, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(procfs)
    try:
        yield
    finally:
        psutil.PROCFS_PATH = before


def measure(late: str, fault: str, directory: Path) -> dict[str, Any]:
    """Return what a node costs with these ranks *late*."""
    tracemalloc.start()
    node = Node(fault, directory / "memory")
    node.run(FILL_SECONDS)
    only_ring = [tracemalloc.Filter(True, ring.__file__)]
    used = tracemalloc.take_snapshot().filter_traces(only_ring).statistics("filename")
    tracemalloc.stop()
    node.look.times, node.figures_for.times = [], []
    node.run(TIMED_SECONDS)
    looks, answers = sorted(node.look.times), sorted(node.figures_for.times)
    told = len(node.causes.all())
    if told != {"nobody": 0, "one": 1, "all": RANKS}[late]:
        raise ValueError(f"{told} ranks have a cause, although {late} is late")
    return {
        "late": late,
        "look, CPU µs a second": statistics.mean(looks),
        "longest look, CPU µs": looks[-1],
        "figures in an answer, CPU µs a push": statistics.mean(answers),
        "longest answer, CPU µs": answers[-1],
        "share of a core": (sum(looks) + sum(answers)) / TIMED_SECONDS / 1e6,
        "ring, MB": sum(each.size for each in used) / 1e6,
    }


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        rows = [measure(late, fault, Path(directory, late)) for late, fault in FAULTS.items()]
    write("evidence_costs", rows)


if __name__ == "__main__":
    main()
