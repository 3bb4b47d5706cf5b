"""The nodes of a simulated fleet answer as exporters do, and each fault shows where it is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.scrape.levels import ALL, exposed_name
from fleet_simulator import fleet as fleets
from fleet_simulator.faults import BY_NAME, Scope
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import equal_jobs, tour
from generators.metrics import families_by_collector
from tests.exporter.asgi import Answer, ask
from tests.exporter.node import Clock

pytestmark = pytest.mark.e2e

# What one page has: each series with its labels and its value, by its name.
Page = dict[str, list[tuple[dict[str, str], float]]]

EVERYTHING = frozenset({ALL})
# Divided GPUs, pods, how often a rank pauses, and failing drivers are not simulated.
NOT_SIMULATED = {
    "rankskew_collector_last_success_timestamp_seconds",
    "rankskew_exporter_web_config_last_reload_success_timestamp_seconds",
    "rankskew_exporter_web_config_last_reload_successful",
    "rankskew_gpu_mig_info",
    "rankskew_gpu_mig_memory_total_bytes",
    "rankskew_gpu_mig_memory_used_bytes",
    "rankskew_gpu_mig_sm_active_ratio",
    "rankskew_group_wait_seconds_total",
    "rankskew_infiniband_congestion_events_total",
    "rankskew_late_pause_seconds",
    "rankskew_late_pause_steps",
    "rankskew_nvml_call_stuck_seconds",
    "rankskew_nvml_error_info",
    "rankskew_rank_pod_info",
}
# Of each job of the tour with a late rank: the cause, and the detail of it.
CAUSES = {
    "loader": ("input", "workers"),
    "storage": ("input", "reads"),
    "thermal": ("slow_device", "clocks"),
    "pcie": ("slow_device", "pcie_link"),
    "aer": ("slow_device", "pcie_errors"),
    "weaklink": ("slow_device", "nvlink_errors"),
    "pstate": ("slow_device", "pstate"),
    "decoder": ("input", "decoder"),
    "foreign": ("foreign_process", ""),
    "cpu": ("cpu", "throttled"),
    "gc": ("gc", ""),
    "batches": ("uneven_batches", ""),
    "checkpoint": ("extra_duties", "checkpoint"),
    "sleep": ("code", "sleep"),
    "lock": ("code", "lock"),
    "worker": ("input", "worker_socket"),
    "mount": ("input", "mount"),
    "node": ("cpu", "node"),
    "network": ("network", "errors"),
    "disk": ("input", "disk"),
    "nfs": ("input", "nfs"),
    "lustre": ("input", "lustre"),
    "cpuheat": ("cpu", "thermal"),
    "cpuclock": ("cpu", "frequency"),
    "numa": ("cpu", "numa_miss"),
    "congestion": ("network", "congestion"),
    "retransmits": ("network", "retransmits"),
    "slowport": ("network", "speed"),
    "nojoin": ("input", "workers"),  # Its ranks do not compare their steps, but one is late.
}
# The state of each other job, as the node with the fault sees it.
STATES = {
    "healthy": "healthy",
    "rotating": "rotating",
    "pause": "pause",
    "hang": "hung",
    "frozen": "hung",
    "oom": "ranks_missing",
    "lost": "hung",
    "deadlock": "hung",
    "killed": "ranks_missing",
    "memory": "healthy",
    "nvlink": "healthy",
    "filer": "healthy",
    "dry": "shared",
    "missing": "ranks_missing",
    "nosync": "not_judgeable",
    "off": "not_judgeable",
    "starting": "starting",
    "finished": "finished",
    "noprobe": "no_probe",
    "stuck": "stands_still",
    "unused": "unused_gpus",
}


def get(fleet: Fleet, path: str, **headers: str) -> Answer:
    answer = ask(fleet_app(fleet, ""), "GET", path, peer=None, host="sim:9919", **headers)
    assert answer is not None
    return answer


def parsed(page: str) -> Page:
    found: Page = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", page, re.MULTILINE):
        pairs = dict(re.findall(r'(\w+)="(.*?)"', labels))
        found.setdefault(name, []).append((pairs, float(value)))
    return found


def samples(fleet: Fleet, node: str) -> Page:
    return parsed(get(fleet, f"/node/{node}/metrics").text)


def only(found: list[tuple[dict[str, str], float]], **wanted: str) -> float:
    """Return the value of the one sample that has the *wanted* labels."""
    (value,) = [value for labels, value in found if wanted.items() <= labels.items()]
    return value


def job(fleet: Fleet, node: str) -> dict[str, Any]:
    """Return the one job on the live page of *node*."""
    (found,) = get(fleet, f"/node/{node}/api/v1/live").content["jobs"]
    return dict(found)


class Tour:
    """The tour a little after its last fault has begun, with all that its exporters show."""

    def __init__(self, directory: Path) -> None:
        clock = Clock()
        self.plans = tour()
        self.fleet = Fleet(self.plans, directory, clock, EVERYTHING)
        faulty = [self.nodes(plan.job_id)[1] for plan in self.plans]
        for _ in range(2):
            clock.seconds += 15
            for node in self.fleet.nodes.values():
                node.advance(self.fleet.now())
        # Work, and faults that last, are told from two scrapes on.
        self.early = {node: samples(self.fleet, node) for node in faulty}
        named = [plan.job_id for plan in self.plans if plan.job_id in CAUSES]
        self.others = {node: samples(self.fleet, node) for node, _ in map(self.nodes, named)}
        clock.seconds += 40
        self.pages = {node: samples(self.fleet, node) for node in faulty}

    def nodes(self, job_id: str) -> tuple[str, str]:
        """Return the healthy node of a job, and the one that has its fault."""
        (plan,) = [plan for plan in self.plans if plan.job_id == job_id]
        return f"sim-{plan.first_node:02}", f"sim-{plan.first_node + 1:02}"


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleets, "HISTORY_STEP_SECONDS", 60)  # Enough to judge by, and cheaper.
        yield Tour(tmp_path_factory.mktemp("tour"))


def test_tour_exposes_what_real_exporters_do(toured: Tour) -> None:
    """Some node of the tour has each series that documentation lists, except a few."""
    real = {exposed_name(f) for _, _, found in families_by_collector() for f in found}

    assert real - set().union(*toured.pages.values()) == NOT_SIMULATED


def test_cause_of_each_fault_is_told_of_the_ranks_that_it_makes_late(toured: Tour) -> None:
    """Only the ranks that a fault makes late have a cause; a job without any has none."""
    told: dict[str, dict[str, tuple[str, str]]] = {}
    for page in (*toured.early.values(), *toured.others.values()):
        for labels, _ in page.get("rankskew_late_cause_info", ()):
            of_job = told.setdefault(labels["job_id"], {})
            of_job[labels["rank"]] = labels["cause"], labels["detail"]

    assert told == {
        name: dict.fromkeys("4567" if BY_NAME[name].scope is Scope.NODE else "6", cause)
        for name, cause in CAUSES.items()
    }


def test_live_page_of_the_tour_shows_each_state(toured: Tour) -> None:
    """The tour shows every state that one node can know; a new kind of fault needs one too."""
    states = {}
    for plan in toured.plans[:-1]:  # The exporter of the last one is down.
        # Of the missing ranks the other node knows.
        node = toured.nodes(plan.job_id)[plan.job_id != "missing"]
        shown = job(toured.fleet, node)
        assert shown["job_id"] == plan.job_id
        states[plan.job_id] = shown["verdict"]["state"]
        if plan.job_id in ("nosync", "off"):  # Told apart by what is missing.
            assert shown["verdict"]["reason"] == plan.job_id.replace("nos", "no_s")

    late = {
        name: "slow_node" if BY_NAME[name].scope is Scope.NODE else "straggler" for name in CAUSES
    }
    assert states == late | STATES


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/", 200, "sim-01"),
        ("/-/ready", 200, "ready"),
        ("/node/sim-03/", 200, "html"),
        ("/node/sim-03/api/v1/live", 200, "ank 6 is slow loading data"),
        ("/node/DOWN/metrics", 503, "This exporter is simulated to be down.\n"),
        ("/node/none/metrics", 404, "There is no node 'none'; / lists them.\n"),
    ],
)
def test_fleet_answers(toured: Tour, path: str, status: int, words: str) -> None:
    """The list of nodes, the readiness check, and each node's own live page work.

    An exporter that goes down answered before, or Prometheus could not miss it.
    """
    answer = get(toured.fleet, path.replace("DOWN", toured.nodes("down")[1]))

    assert answer.status == status
    assert words in answer.text
    assert toured.early[toured.nodes("down")[1]]


def test_discovery_lists_each_node_with_its_own_page(tmp_path: Path) -> None:
    """Prometheus finds all nodes behind the address that it asked, told apart by instance."""
    fleet = Fleet(equal_jobs(2, 4, 1, []), tmp_path, Clock())

    assert get(fleet, "/sd").content == [
        {
            "targets": ["sim:9919"],
            "labels": {
                "__metrics_path__": f"/node/{name}/metrics",
                "instance": f"{name}:9917",
                "cluster": "simulated",
            },
        }
        for name in ("sim-00", "sim-01")
    ]
