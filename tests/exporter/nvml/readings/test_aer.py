"""The errors of a GPU's PCIe link are read from the kernel's files of its two ends."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.nvml.readings.pcie_link import ERRORS_SECONDS, AerErrors, total
from tests.exporter.nvml.driver import Driver, Fails

# As the kernel writes it: the total is of messages, and may be below the sum of the errors.
CORRECTABLE = "Receiver Error {}\nBad TLP 2\nTimeout 0\nTOTAL_ERR_COR {}\n"


PORT = "devices/pci0000:1a/0000:1a:01.0"


def files(sysfs: Path, correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> Path:
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
    text = CORRECTABLE.format(correctable, correctable)
    (device / "aer_dev_correctable").write_text(text)
    (device / "aer_dev_nonfatal").write_text(f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}\n")
    (device / "aer_dev_fatal").write_text(f"Undefined 0\nTOTAL_ERR_FATAL {fatal}\n")


def a_gpu(bus_id: Any = "00000000:1B:00.0") -> Driver:
    answer = bus_id if isinstance(bus_id, Fails) else SimpleNamespace(busId=bus_id)
    return Driver(nvmlDeviceGetPciInfo=answer)


def test_errors_of_all_kinds_are_added_up(tmp_path: Path) -> None:
    """The total lines count, not the errors above them."""
    files(tmp_path, 40, 5, 1)

    assert AerErrors(tmp_path).read(a_gpu().opened(), 0.0) == {"pcie_errors": 46}


def test_port_above_the_gpu_is_the_other_end_of_its_link(tmp_path: Path) -> None:
    """What the GPU sends damaged, only the port that receives it can count."""
    files(tmp_path, 40)
    write(tmp_path / PORT, 500, 0, 0)
    write(tmp_path / PORT / "0000:1b:00.1", 9000, 0, 0)

    assert AerErrors(tmp_path).read(a_gpu().opened(), 0.0) == {"pcie_errors": 540}


@pytest.mark.parametrize("bus_id", ["00000000:1C:00.0", Fails()])
def test_gpu_without_files_or_bus_id_has_no_reading(tmp_path: Path, bus_id: Any) -> None:
    """A virtual machine hides the files; that is no 0."""
    files(tmp_path)

    assert AerErrors(tmp_path).read(a_gpu(bus_id).opened(), 0.0) == {}


def test_file_that_is_missing_is_no_drop_of_the_sum(tmp_path: Path) -> None:
    """A sum without its largest part would look like a reset."""
    device = files(tmp_path, 40, 5)
    errors, ask = AerErrors(tmp_path), a_gpu().opened()
    errors.read(ask, 0.0)
    (device / "aer_dev_correctable").unlink()

    assert errors.read(ask, ERRORS_SECONDS) == {}


def test_files_are_read_every_half_minute_and_when_the_gpu_is_opened(tmp_path: Path) -> None:
    """Between two readings the last one is returned, unless the GPU was reset meanwhile."""
    files(tmp_path, 1)
    errors, driver = AerErrors(tmp_path), a_gpu()
    ask = driver.opened()
    seen = [errors.read(ask, 100.0)]
    files(tmp_path, 2)
    seen += [errors.read(ask, 100.0 + ERRORS_SECONDS - 1), errors.read(ask, 100.0 + ERRORS_SECONDS)]
    files(tmp_path, 3)
    seen.append(errors.read(driver.opened(), 101.0 + ERRORS_SECONDS))

    assert [each["pcie_errors"] for each in seen] == [1, 1, 2, 3]


@pytest.mark.parametrize("text", ["", "TOTAL_ERR_COR\n", "TOTAL_ERR_COR many\n", "Bad TLP 3\n"])
def test_file_without_a_total_has_none(tmp_path: Path, text: str) -> None:
    """What is not as the kernel documents it is no number."""
    (tmp_path / "aer").write_text(text)

    assert total(tmp_path / "aer") is None
