from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed
from exporter.nvml.readings.placement import Placement, Topology
from tests.exporter.nvml.driver import Driver, Fails

PCI = SimpleNamespace(busId="00000000:1B:00.0")
MASKS = {
    "nvmlDeviceGetMemoryAffinity": [0b10, 0],
    "nvmlDeviceGetCpuAffinity": [0b1011, 0b1],
}


def place(driver: Driver, sysfs: Path = Path("/nowhere")) -> dict[str, Any]:
    return Placement(sysfs).read(driver.opened(), 100.0)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({}, {}),
        # Masks of 64 bits a word; the device file's number is NVML's alone.
        (
            MASKS | {"nvmlDeviceGetMinorNumber": 5, "nvmlDeviceGetSerial": "1650"},
            {"serial": "1650", "minor_number": 5, "numa_node": 1, "cpu_affinity": (0, 1, 3, 64)},
        ),
        ({"nvmlDeviceGetMemoryAffinity": [0b11]}, {}),  # Two bits name no node.
    ],
    ids=["neither knows", "container without sysfs", "near several nodes"],
)
def test_nvml_is_asked_where_the_kernel_tells_nothing(
    answers: dict[str, Any], told: dict[str, Any]
) -> None:
    assert place(Driver(**answers)) == told


@pytest.mark.parametrize(("numa_node", "told"), [("0", {"numa_node": 0}), ("-1", {})])
def test_kernel_knows_better_than_nvml(tmp_path: Path, numa_node: str, told: Any) -> None:
    """Its files are found by its form of NVML's bus id; its -1 is no node, nor NVML's."""
    device = tmp_path / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{numa_node}\n")
    (device / "local_cpulist").write_text("0-2,64\n")
    driver = Driver(nvmlDeviceGetPciInfo=PCI, **MASKS)

    assert place(driver, tmp_path) == told | {"cpu_affinity": (0, 1, 2, 64)}


def test_place_is_read_once_an_opening() -> None:
    """It does not change while the GPU is open, and is asked again after it was lost."""
    driver, placement = Driver(nvmlDeviceGetMinorNumber=5), Placement(Path("/nowhere"))
    ask = driver.opened()
    first = placement.read(ask, 100.0)
    driver.answers["nvmlDeviceGetMinorNumber"] = 6

    assert placement.read(ask, 10_000.0) == first == {"minor_number": 5}
    assert placement.read(driver.opened(), 10_001.0) == {"minor_number": 6}


def meet(one: int, other: int) -> int:
    level: int = pynvml.NVML_TOPOLOGY_NODE
    return level if one + other < 4 else pynvml.NVML_TOPOLOGY_SYSTEM


def several(handle: Any = lambda index: index) -> Driver:
    """A driver of several GPUs."""
    return Driver(nvmlDeviceGetHandleByIndex=handle, nvmlDeviceGetTopologyCommonAncestor=meet)


def test_topology_has_each_pair_from_both_sides() -> None:
    """The level from 0 to 1 is also that from 1 to 0; a single GPU has none."""
    assert Topology(1, several()).read(100.0) == {0: {}}
    assert Topology(4, several()).read(100.0) == {
        0: {"1": "node", "2": "node", "3": "node"},
        1: {"0": "node", "2": "node", "3": "system"},
        2: {"0": "node", "1": "node", "3": "system"},
        3: {"0": "node", "1": "system", "2": "system"},
    }


def test_lost_gpu_is_missing_from_the_topology_until_it_is_back() -> None:
    """One that cannot be opened costs the others nothing; it is retried every 5 minutes."""

    def without_1(index: int) -> int:
        if index == 1:
            raise Fails
        return index

    driver = several(without_1)
    topology = Topology(3, driver)
    without = topology.read(100.0)
    driver.answers["nvmlDeviceGetHandleByIndex"] = lambda index: index

    assert without == {0: {"2": "node"}, 2: {"0": "node"}}
    assert topology.read(399.0) == without
    assert len(topology.read(400.0)[1]) == 2


def test_replaced_driver_ends_the_process() -> None:
    """What only a new process can mend is not swallowed here."""
    with pytest.raises(CallFailed):
        Topology(2, several(Fails(pynvml.NVML_ERROR_UNINITIALIZED))).read(100.0)
