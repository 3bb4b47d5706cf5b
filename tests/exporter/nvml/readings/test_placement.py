from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.nvml.readings.placement import Placement
from tests.exporter.nvml.driver import Driver

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
