"""A Prometheus that scrapes all simulated nodes, on two cores, and the CPU of each process."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from devstack.parts import ROOT, RULES, PrometheusProcess, SimulationProcess
from devstack.process import get

CORES: Final = 2
RANKS_PER_NODE: Final = 8
# CPU seconds of 15 that rules and scraping may take, and memory, up to the largest size.
RULES_LIMIT: Final = 1.5
SCRAPES_LIMIT: Final = 2.5
MEMORY_LIMIT_MIB: Final = 3 * 1024
# The fault of the late rank, and the stage in which it is late.
FAULT, FAULT_STAGE = "thermal", "backward"
INTERVAL_SECONDS: Final = 15.0
# This checkout, and the one that it is compared with.
NOW, BEFORE = "now", "before"
TREES: Final = (BEFORE, NOW)
# Fills the windows of a minute.
WARMUP_SECONDS: Final = 120.0
# Whole periods of the groups that run every minute or two.
EVALUATIONS: Final = 8
URGENT_NICENESS: Final = -15


@dataclass(frozen=True)
class Plan:
    """What is simulated, and how long."""

    ranks: int
    tree: str = NOW
    jobs: int = 1
    warmup_seconds: float = WARMUP_SECONDS
    evaluations: int = EVALUATIONS
    checkout: Path = ROOT
    # None: those of the checkout.
    rules: Path | None = None
    urgent: bool = False
    interval_seconds: float = INTERVAL_SECONDS

    @property
    def about(self) -> dict[str, Any]:
        """Return what distinguishes this measurement from others."""
        return {"ranks": self.ranks, "tree": self.tree, "jobs": self.jobs}

    @property
    def nodes(self) -> int:
        """Return how many nodes the ranks are on."""
        return self.ranks // RANKS_PER_NODE

    @property
    def late(self) -> tuple[str, str]:
        """Return the first job and its late rank: neither at an end nor the first on a node."""
        job = "sim" if self.jobs == 1 else f"sim-{0:0{len(str(self.jobs - 1))}}"
        return job, str(self.ranks // self.jobs // 3)

    def simulated(self) -> list[str]:
        """Return what to ask of `rankskew simulate`."""
        node, gpu = divmod(int(self.late[1]), RANKS_PER_NODE)
        asked = [f"--nodes={self.nodes}", f"--gpus={RANKS_PER_NODE}", f"--jobs={self.jobs}"]
        return [*asked, "--fault", f"{FAULT}:node={node},gpu={gpu}"]


class Load(SimulationProcess):
    """The simulated nodes."""

    ready_seconds = 120.0

    def __init__(self, directory: Path, plan: Plan) -> None:
        # Python would look into the working directory first.
        code = {"PYTHONPATH": str(plan.checkout), "PYTHONSAFEPATH": "1"}
        super().__init__(directory / "load", plan.simulated(), environment=code)


class ScalePrometheus(PrometheusProcess):
    """Prometheus with *rules* and every node of *load* as its own target."""

    # A clean stop would write everything it holds to disk, and nobody reads that.
    grace_seconds = 1.0

    def __init__(self, directory: Path, load: Load, plan: Plan) -> None:
        super().__init__(
            directory,
            discovery=load.discovery,
            interval_seconds=plan.interval_seconds,
            rules=plan.rules or plan.checkout / RULES.relative_to(ROOT),
        )

    def metrics(self) -> dict[str, float]:
        """Return Prometheus's own metrics, by name and labels."""
        lines = get(f"{self.url}/metrics", timeout_seconds=30).decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def cpu_seconds(self) -> float:
        """Return the CPU time of Prometheus since its start."""
        return self.metrics()["process_cpu_seconds_total"]

    def version(self) -> str:
        """Return the version of this Prometheus."""
        answer = json.loads(get(f"{self.url}/api/v1/status/buildinfo"))
        return str(answer["data"]["version"])

    def rule_groups(self) -> list[dict[str, Any]]:
        """Return the groups with their rules and the last duration of each, in seconds."""
        answer = json.loads(get(f"{self.url}/api/v1/rules", timeout_seconds=60))
        groups: list[dict[str, Any]] = answer["data"]["groups"]
        return groups


class Usage:
    """CPU that processes have taken since this was made, in cores."""

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._since = time.monotonic()
        self._before = self._now()

    def cores(self) -> list[float]:
        """Return the cores of each process, then those of everything else on the machine."""
        seconds = time.monotonic() - self._since
        used = [(now - then) / seconds for now, then in zip(self._now(), self._before, strict=True)]
        return [*used[:-1], max(used[-1] - sum(used[:-1]), 0.0)]

    def _now(self) -> list[float]:
        each = [sum(process.cpu_times()[:2]) for process in self._processes]
        whole = psutil.cpu_times()
        return [*each, sum(whole) - whole.idle - whole.iowait - whole.guest - whole.guest_nice]


def go_first(pid: int) -> None:
    """Give the process priority over others on this machine; needs root.

    If the kernel groups processes by session, niceness only counts within a session.
    """
    os.setpriority(os.PRIO_PROCESS, pid, URGENT_NICENESS)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(URGENT_NICENESS))


@contextmanager
def running(plan: Plan) -> Iterator[tuple[Load, ScalePrometheus]]:
    """Run the nodes and Prometheus on two cores, and remove everything afterwards."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:CORES])
    try:
        with (
            tempfile.TemporaryDirectory() as name,
            Load(Path(name), plan) as load,
            ScalePrometheus(Path(name), load, plan) as prometheus,
        ):
            if plan.urgent:
                for process in (load, prometheus):
                    go_first(process.pid)
            yield load, prometheus
    finally:
        os.sched_setaffinity(0, allowed)
