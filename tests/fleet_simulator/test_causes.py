"""The cause of every planted fault is told, of the ranks that it makes late and of no others."""

from pathlib import Path

import pytest

from fleet_simulator.faults import BY_NAME, KINDS, Scope
from tests.exporter.clock import Clock
from tests.fleet_simulator.test_fleet import fleet, samples

# Its cause and the detail of it, of each kind of fault that makes ranks late.
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
}
ONSET_SECONDS = 10
KNOWN_SECONDS = 30
NODES = ("sim-00", "sim-01")


def told(directory: Path, fault: str, seconds: int) -> dict[str, tuple[str, str]]:
    """Return the cause of each rank for which one is told, *seconds* after the start."""
    clock = Clock()
    simulated = fleet(directory, *([fault] if fault else []), clock=clock)
    for _ in range(0, seconds, 2):  # As often as exporters look while a rank is late.
        clock.seconds += 2
        for name in NODES:
            simulated.app(name)
    return {
        labels["rank"]: (labels["cause"], labels["detail"])
        for name in NODES
        for labels, _ in samples(simulated, name).get("rankskew_late_cause_info", [])
    }


def test_every_kind_that_makes_ranks_late_has_a_cause() -> None:
    """A new kind of fault comes with what is to be told of it."""
    late = [kind for kind in KINDS if kind.extra and not kind.rotates and not kind.slows_all]
    assert list(CAUSES) == [kind.name for kind in late]


@pytest.mark.parametrize("kind", CAUSES)
def test_cause_is_told_within_half_a_minute(tmp_path: Path, kind: str) -> None:
    """Cause and detail are those that were planted; healthy ranks have none."""
    late = range(4, 8) if BY_NAME[kind].scope is Scope.NODE else (6,)
    fault = f"{kind}:node=1,gpu=2,after={ONSET_SECONDS}s"

    assert told(tmp_path, fault, ONSET_SECONDS + KNOWN_SECONDS) == {
        str(rank): CAUSES[kind] for rank in late
    }


@pytest.mark.parametrize("fault", ["", "rotating", "filer", "memory:node=1", "nvlink:node=1"])
def test_job_without_a_late_rank_has_no_cause(tmp_path: Path, fault: str) -> None:
    """Nothing is explained that is not so, not even on a GPU with a fault."""
    assert told(tmp_path, fault, KNOWN_SECONDS) == {}
