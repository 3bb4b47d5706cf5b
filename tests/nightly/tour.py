"""The tour of `rankskew simulate`, scraped by a real Prometheus, and what is right to say of it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from devstack.parts import ROOT, PrometheusProcess, SimulationProcess
from devstack.process import get, wait_for
from exporter.live.states import HUNG
from fleet_simulator.faults import BY_NAME, Scope
from fleet_simulator.plan import tour
from tests.e2e.rules import fast_rules

# A scrape that is missed changes a state: on a busy machine a node's page takes seconds.
INTERVAL_SECONDS: Final = 6.0
PATIENCE_SECONDS: Final = 420.0
PLACES: Final = {plan.job_id: plan for plan in tour()}
MISSING: Final = "job_reason:rankskew_not_judgeable:bool{job_id='down'}"
# Money is told only where somebody has set a price, and that is for one cluster.
PRICE: Final = """\
groups:
  - name: price
    rules:
      - record: rankskew:gpu_hour_price:override
        labels: {cluster: simulated}
        expr: vector(2.5)
"""
FOUND, BALANCED, CANNOT_TELL = 1, 0, 2
# The only late rank of each job of the tour, and the ranks of its node.
LATE_RANK: Final = 6
LATE_NODE: Final = (4, 5, 6, 7)


@dataclass(frozen=True)
class Expected:
    """What is right: any of *what* and of its *details*, a part of the *first* action's words.

    *ranks* that are none of them are wrong; empty or None: does not apply.
    """

    status: int
    what: tuple[str, ...] = ()
    detail: str | None = None
    ranks: tuple[int, ...] = ()
    stage: str | None = None
    first: str = ""


def _late(what: str, detail: str, stage: str, first: str) -> Expected:
    return Expected(FOUND, (what,), detail, (LATE_RANK,), stage, first)


def _slow_node(what: str, detail: str, stage: str, first: str) -> Expected:
    return Expected(FOUND, (what,), detail, LATE_NODE, stage, first)


# By the job of the tour, which is named after its fault.
TOUR: Final = {
    "healthy": Expected(BALANCED),
    "loader": _late("input", "workers", "data", "pgrep -P 20006"),
    "storage": _late("input", "reads", "data", "iostat"),
    "thermal": _late("slow_device", "clocks", "backward", "CLOCK,PERFORMANCE,TEMPERATURE"),
    "pcie": _late("slow_device", "pcie_link", "h2d", "Link Info"),
    "aer": _late("slow_device", "pcie_errors", "h2d", "grep -i replay"),
    "weaklink": _late("slow_device", "nvlink_errors", "backward", "nvidia-smi nvlink -e"),
    "pstate": _late("slow_device", "pstate", "backward", "PERFORMANCE,CLOCK"),
    "decoder": _late("input", "decoder", "data", "nvidia-smi dmon"),
    "foreign": _late("foreign_process", "", "backward", "find its owner with `nvidia-smi -i"),
    "cpu": _late("cpu", "throttled", "forward", "raise the CPU limit"),
    "gc": _late("gc", "", "other", "py-spy dump --pid 20006"),
    "batches": _late("uneven_batches", "", "backward", "how long its samples are"),
    "checkpoint": _late("extra_duties", "checkpoint", "checkpoint", "py-spy dump --pid 20006"),
    "sleep": _late("code", "sleep", "data", "py-spy dump --pid 20006"),
    "lock": _late("code", "lock", "other", "py-spy dump --pid 20006"),
    "worker": _late("input", "worker_socket", "data", "pgrep -P 20006"),
    "mount": _late("input", "mount", "data", "py-spy dump --pid 20006"),
    "node": _slow_node("cpu", "node", "forward", "top"),
    "network": _slow_node("network", "errors", "forward", "ip -s link"),
    "disk": _slow_node("input", "disk", "data", "iostat"),
    "nfs": _slow_node("input", "nfs", "data", "nfsiostat"),
    "lustre": _slow_node("input", "lustre", "data", "lctl get_param"),
    "cpuheat": _slow_node("cpu", "thermal", "forward", "turbostat"),
    "cpuclock": _slow_node("cpu", "frequency", "forward", "scaling_governor"),
    "numa": _slow_node("cpu", "numa_miss", "forward", "numastat"),
    "congestion": _slow_node("network", "congestion", "forward", "port_xmit_wait"),
    "retransmits": _slow_node("network", "retransmits", "data", "ss -tinp"),
    "slowport": _slow_node("network", "speed", "forward", "ibstat"),
    "rotating": Expected(FOUND, ("rotating",), stage="backward", first="work of the ranks"),
    "hang": _late("hung", "", "data", "py-spy dump --pid 20006"),
    "frozen": _late("hung", "", "frozen", "py-spy dump --pid 20006"),
    "oom": _late("hung", "", "frozen", "py-spy dump --pid 20006"),
    "lost": _late("hung", "", "backward", "py-spy dump --pid 20006"),
    "deadlock": Expected(FOUND, ("hung_together",), first="py-spy dump"),
    "killed": Expected(FOUND, ("ranks_silent",), first="dmesg"),
    "memory": Expected(FOUND, ("gpu_memory",), ranks=(LATE_RANK,), first="ECC,ROW_REMAPPER"),
    "nvlink": Expected(FOUND, ("nvlink_down",), ranks=(LATE_RANK,), first="nvlink -s"),
    "filer": Expected(FOUND, ("slower",), stage="data", first="look at what began"),
    "missing": Expected(FOUND, ("ranks_without_probe",), ranks=LATE_NODE, first="environ"),
    "nosync": Expected(CANNOT_TELL, ("no_sync",), first="mark the collective"),
    "nojoin": _late("input", "workers", "data", "pgrep -P 20006"),
    "off": Expected(CANNOT_TELL, ("off",), first="rankskew control"),
    "starting": Expected(FOUND, ("slow_start",), first="py-spy dump"),
    "finished": Expected(CANNOT_TELL, ("finished",), first="--at"),
    "noprobe": Expected(CANNOT_TELL, ("no_probe",), first="rank_probe"),
    "down": Expected(FOUND, ("exporter_down",), first="systemctl status rankskew-exporter"),
}


# Cause and detail that the exporter has to find, by the fault that makes a rank late.
CAUSES: Final = {
    name: (TOUR[name].what[0], TOUR[name].detail or "")
    for name, kind in BY_NAME.items()
    if kind.extra and kind.scope is not Scope.JOB
}


@dataclass(frozen=True)
class Row:
    """What docs/concepts.md says of one state; `…` stands for anything."""

    state: str
    job_id: str
    dashboard: str
    page: str
    top: str
    alert: str


def documented() -> list[Row]:
    """Return the rows of the table in docs/concepts.md: a job for each state."""
    lines = (ROOT / "docs" / "concepts.md").read_text().splitlines()
    head = "| state | fault | job dashboard | live page | `rankskew top` | alert |"
    rows = list(takewhile(lambda line: line.startswith("| "), lines[lines.index(head) :]))[2:]
    return [Row(*(cell.strip() for cell in row.strip("|").split(" | "))) for row in rows]


@dataclass(frozen=True)
class Tour:
    """The simulated fleet, and the Prometheus that scrapes it."""

    simulation: SimulationProcess
    prometheus: PrometheusProcess

    def urls(self, job_id: str) -> list[str]:
        """Return where the exporters of a job are."""
        plan = PLACES[job_id]
        nodes = range(plan.first_node, plan.first_node + plan.nodes)
        return [f"{self.simulation.url}/node/sim-{node:02}" for node in nodes]

    def live(self, job_id: str) -> dict[str, Any]:
        """Return what the page of a node says of its job: of the node with the fault, if it can."""
        url = self.urls(job_id)[0 if job_id in ("missing", "down") else -1]
        (job,) = json.loads(get(f"{url}/api/v1/live"))["jobs"]
        verdict: dict[str, Any] = job["verdict"]
        return verdict

    def troubles(self) -> dict[str, object]:
        """Return which jobs have another state, and which late ranks another cause, than is right.

        The last to be known is that ranks whose exporter is down are missing from the judged ones.
        """
        # A rank of it dies after a minute, and before it hangs its state changes all the time.
        expected = {row.job_id: row.state for row in documented()} | {"oom": HUNG}
        query = self.prometheus.query
        found = query("job:rankskew_state:info")
        states = {each.labels["job_id"]: each.labels["state"] for each in found}
        causes = {
            each.labels["job_id"]: (each.labels["cause"], each.labels.get("detail", ""))
            for each in query(f'rankskew_late_cause_info{{rank="{LATE_RANK}"}}')
        }
        wrong: dict[str, object] = {
            job: (states.get(job), causes.get(job))
            for job in PLACES
            if states.get(job) != expected.get(job, states.get(job))
            or causes.get(job) != CAUSES.get(job, causes.get(job))
        }
        return wrong | ({} if query(MISSING) else {"down": MISSING})


@contextmanager
def settled_tour(directory: Path) -> Iterator[Tour]:
    """Run the tour, with all series that a dashboard shows; yields it once it has settled.

    That is once every job has its state, and every late rank its cause.
    """
    rules = fast_rules(directory / "rules")
    (rules / "price.yaml").write_text(PRICE)
    simulation = SimulationProcess(directory / "simulation", ["--series.detail", "all"])
    prometheus = PrometheusProcess(
        directory,
        discovery=simulation.discovery,
        rules=rules,
        interval_seconds=INTERVAL_SECONDS,
        scrapes_itself=True,
    )
    with simulation, prometheus:
        found = Tour(simulation, prometheus)
        wait_for(lambda: None if found.troubles() else True, PATIENCE_SECONDS, 2.0)
        assert not (troubles := found.troubles()), troubles
        # What a group of rules makes of another one's records is an evaluation later.
        time.sleep(INTERVAL_SECONDS)
        yield found
