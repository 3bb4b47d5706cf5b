"""The generation of a PCIe link, and its errors from the kernel's files of its two ends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.pcie_link import (
    ERRORS_SECONDS,
    LINK_SECONDS,
    AerErrors,
    PcieLink,
    total,
)
from tests.exporter.nvml.driver import Driver, Fails

GENERATION, UTILIZATION, STATE, REASONS = (
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetCurrentClocksEventReasons",
)
RESTING = SimpleNamespace(gpu=0)


def at_work(**changes: Any) -> Driver:
    """A GPU that computes."""
    return Driver(**{STATE: 0, UTILIZATION: SimpleNamespace(gpu=97), GENERATION: 4} | changes)


@pytest.mark.parametrize(
    ("changes", "generation"),
    [
        ({GENERATION: Fails()}, None),
        ({}, 4),
        ({UTILIZATION: RESTING}, None),
        ({STATE: 8}, None),  # A screen's few percent at rest.
        ({STATE: 2}, 4),  # CUDA on cards with a screen.
        ({STATE: 32}, 4),  # Unknown.
        ({STATE: Fails()}, 4),
        ({UTILIZATION: Fails()}, None),
        ({UTILIZATION: Fails(), REASONS: 0x1}, None),
        ({UTILIZATION: Fails(), REASONS: 0x4}, 4),
    ],
)
def test_generation_is_told_of_a_gpu_at_work_only(
    changes: dict[str, Any], generation: int | None
) -> None:
    """An idle GPU's link slows down to save power: not a degraded link, and no series."""
    ask = at_work(**changes).opened()

    assert PcieLink(15.0).read(ask, 1.0) == {"pcie_link_generation": generation}


def test_link_is_looked_at_every_few_seconds_at_work_and_each_time_at_rest() -> None:
    """A slowed link shows after that time, a timeout costs one reading; short work is seen."""
    driver, link = at_work(**{UTILIZATION: RESTING}), PcieLink(15.0)
    ask = driver.opened()

    def read(now: float, **changes: Any) -> Any:
        driver.answers |= changes
        return link.read(ask, now)["pcie_link_generation"]

    assert read(1.0) is None
    assert read(2.0, **{UTILIZATION: SimpleNamespace(gpu=5)}) == 4
    assert read(1.0 + LINK_SECONDS, **{GENERATION: 3}) == 4
    assert read(2.0 + LINK_SECONDS) == 3
    assert read(2.0 + 2 * LINK_SECONDS, **{GENERATION: Fails(pynvml.NVML_ERROR_TIMEOUT)}) is None
    assert read(3.0 + 2 * LINK_SECONDS, **{GENERATION: 4}) == 4


def test_generation_stays_while_the_gpu_pauses() -> None:
    """Between two steps the series is not gone; after a window of rest it is."""
    driver, link = at_work(), PcieLink(15.0)
    ask = driver.opened()
    link.read(ask, 1.0)
    driver.answers |= {UTILIZATION: RESTING, GENERATION: 1}

    assert link.read(ask, 16.0) == {"pcie_link_generation": 4}
    assert link.read(ask, 17.0) == {"pcie_link_generation": None}


PORT = "devices/pci0000:1a/0000:1a:01.0"


def count(sysfs: Path, correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> Path:
    """Write what the kernel counts of the GPU 00000000:1B:00.0, and return its folder."""
    device = sysfs / PORT / "0000:1b:00.0"
    link = sysfs / "bus/pci/devices/0000:1b:00.0"
    if not link.exists():
        link.parent.mkdir(parents=True)
        link.symlink_to(device)
    write(device, correctable, nonfatal, fatal)
    return device


def write(device: Path, correctable: int, nonfatal: int, fatal: int) -> None:
    device.mkdir(parents=True, exist_ok=True)
    # As the kernel writes it: the total is of messages, and may be below the sum of the errors.
    (device / "aer_dev_correctable").write_text(f"Bad TLP 2\nTOTAL_ERR_COR {correctable}\n")
    (device / "aer_dev_nonfatal").write_text(f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}\n")
    (device / "aer_dev_fatal").write_text(f"Undefined 0\nTOTAL_ERR_FATAL {fatal}\n")


def a_gpu(bus_id: str = "00000000:1B:00.0") -> Driver:
    return Driver(nvmlDeviceGetPciInfo=SimpleNamespace(busId=bus_id))


def test_errors_of_all_kinds_and_of_both_ends_are_added_up(tmp_path: Path) -> None:
    """What the GPU sends damaged, only the port that receives it can count."""
    device = count(tmp_path, 40, 5, 1)
    assert AerErrors(tmp_path).read(a_gpu().opened(), 0.0) == {"pcie_errors": 46}
    write(device.parent, 500, 0, 0)
    write(device.with_name("0000:1b:00.1"), 9000, 0, 0)

    assert AerErrors(tmp_path).read(a_gpu().opened(), 0.0) == {"pcie_errors": 546}


@pytest.mark.parametrize("driver", [a_gpu("00000000:1C:00.0"), Driver()])
def test_gpu_without_files_or_bus_id_has_no_reading(tmp_path: Path, driver: Driver) -> None:
    """A virtual machine hides the files; that is no 0."""
    count(tmp_path)

    assert AerErrors(tmp_path).read(driver.opened(), 0.0) == {}


def test_file_that_is_missing_is_no_drop_of_the_sum(tmp_path: Path) -> None:
    """A sum without its largest part would look like a reset."""
    device = count(tmp_path, 40, 5)
    errors, ask = AerErrors(tmp_path), a_gpu().opened()
    errors.read(ask, 0.0)
    (device / "aer_dev_correctable").unlink()

    assert errors.read(ask, ERRORS_SECONDS) == {}


def test_files_are_read_every_half_minute_and_when_the_gpu_is_opened(tmp_path: Path) -> None:
    """Between two readings the last one is returned, unless the GPU was reset meanwhile."""
    count(tmp_path, 1)
    errors, driver = AerErrors(tmp_path), a_gpu()
    ask = driver.opened()
    seen = [errors.read(ask, 100.0)]
    count(tmp_path, 2)
    seen += [errors.read(ask, 99.0 + ERRORS_SECONDS), errors.read(ask, 100.0 + ERRORS_SECONDS)]
    count(tmp_path, 3)
    seen.append(errors.read(driver.opened(), 101.0 + ERRORS_SECONDS))

    assert [each["pcie_errors"] for each in seen] == [1, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "TOTAL_ERR_COR\n", "TOTAL_ERR_COR many\n", "Bad TLP 3\n"])
def test_file_without_a_total_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "aer").write_text(text)

    assert total(tmp_path / "aer") is None
