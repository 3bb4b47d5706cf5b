from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.placement import Placement, Topology
from exporter.nvml.readings.query import Ask

UNSUPPORTED = "not supported"


class FakeDriver(Calls):
    """Answers calls by function; what it has no answer for is not supported."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(60.0, 60.0)
        self.answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        self.asked.append((function.__name__, *args))
        answer = self.answers.get(function.__name__, UNSUPPORTED)
        answer = answer(*args) if callable(answer) else answer
        if answer == UNSUPPORTED:
            raise CallFailed(function.__name__, gpu, pynvml.NVML_ERROR_NOT_SUPPORTED, answer)
        return answer


def place(driver: FakeDriver, sysfs: Path = Path("/nowhere")) -> dict[str, Any]:
    return Placement(sysfs).read(Ask(0, object(), driver), 100.0)


def tell(sysfs: Path, numa_node: str, cpus: str) -> None:
    device = sysfs / "bus/pci/devices/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{numa_node}\n")
    (device / "local_cpulist").write_text(f"{cpus}\n")


PCI = SimpleNamespace(busId="00000000:1B:00.0")
MASKS = {
    "nvmlDeviceGetMemoryAffinity": [0b10, 0],
    "nvmlDeviceGetCpuAffinity": [0b1011, 0b1],
}


def test_host_that_tells_nothing_has_no_place() -> None:
    """Neither sysfs nor NVML knows: nothing is made up."""
    assert place(FakeDriver()) == {}


def test_kernel_knows_better_than_nvml(tmp_path: Path) -> None:
    """The files are found by the kernel's form of NVML's bus id, and go before NVML's masks."""
    tell(tmp_path, "0", "0-2,64")

    assert place(FakeDriver(nvmlDeviceGetPciInfo=PCI, **MASKS), tmp_path) == {
        "numa_node": 0,
        "cpu_affinity": (0, 1, 2, 64),
    }


def test_unknown_node_is_no_reading(tmp_path: Path) -> None:
    """The kernel's -1 means that it has no node for the GPU, not that there is one numbered so."""
    tell(tmp_path, "-1", "0-3")

    assert "numa_node" not in place(FakeDriver(nvmlDeviceGetPciInfo=PCI, **MASKS), tmp_path)


def test_container_without_sysfs_asks_nvml() -> None:
    """Masks of 64 bits a word become numbers; the device file's number is NVML's alone."""
    assert place(FakeDriver(nvmlDeviceGetMinorNumber=5, **MASKS)) == {
        "minor_number": 5,
        "numa_node": 1,
        "cpu_affinity": (0, 1, 3, 64),
    }


def test_gpu_near_several_nodes_has_none() -> None:
    """Two bits of the mask name no node."""
    assert place(FakeDriver(nvmlDeviceGetMemoryAffinity=[0b11])) == {}


def test_place_is_read_once_an_opening() -> None:
    """It does not change while the GPU is open, and is asked again after it was lost."""
    driver = FakeDriver(nvmlDeviceGetMinorNumber=5)
    placement, ask = Placement(Path("/nowhere")), Ask(0, object(), driver)
    first = placement.read(ask, 100.0)
    driver.answers["nvmlDeviceGetMinorNumber"] = 6

    assert placement.read(ask, 10_000.0) == first == {"minor_number": 5}
    assert placement.read(Ask(0, object(), driver), 10_001.0) == {"minor_number": 6}


def meet(one: int, other: int) -> int:
    level: int = pynvml.NVML_TOPOLOGY_NODE
    return level if one + other < 4 else pynvml.NVML_TOPOLOGY_SYSTEM


def test_topology_has_each_pair_from_both_sides() -> None:
    """The level from 0 to 1 is also that from 1 to 0; a single GPU has none."""
    driver = FakeDriver(
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetTopologyCommonAncestor=meet
    )

    assert Topology(1, driver).read(100.0) == {0: {}}
    assert Topology(3, driver).read(100.0) == {
        0: {"1": "node", "2": "node"},
        1: {"0": "node", "2": "node"},
        2: {"0": "node", "1": "node"},
    }
    assert Topology(4, driver).read(100.0)[3] == {"0": "node", "1": "system", "2": "system"}


def test_lost_gpu_is_missing_from_the_topology_until_it_is_back() -> None:
    """One that cannot be opened costs the others nothing; it is retried every 5 minutes."""
    driver = FakeDriver(
        nvmlDeviceGetHandleByIndex=lambda index: UNSUPPORTED if index == 1 else index,
        nvmlDeviceGetTopologyCommonAncestor=meet,
    )
    topology = Topology(3, driver)
    without = topology.read(100.0)
    driver.answers["nvmlDeviceGetHandleByIndex"] = lambda index: index

    assert without == {0: {"2": "node"}, 2: {"0": "node"}}
    assert topology.read(399.0) == without
    assert len(topology.read(400.0)[1]) == 2


def test_replaced_driver_ends_the_process() -> None:
    """What only a new process can mend is not swallowed here."""

    def mismatch(index: int) -> int:
        raise CallFailed("nvmlDeviceGetHandleByIndex", index, pynvml.NVML_ERROR_UNINITIALIZED, "")

    with pytest.raises(CallFailed):
        Topology(2, FakeDriver(nvmlDeviceGetHandleByIndex=mismatch)).read(100.0)
