import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed
from exporter.nvml.readings import query as query_module
from exporter.nvml.readings.one_call import READINGS, Reading
from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import GpuSample
from exporter.nvml.worker import gpu as gpu_module
from exporter.nvml.worker.gpu import Gpu
from tests.exporter.nvml.driver import Driver, Fails

POWER = "nvmlDeviceGetPowerUsage"
OPENING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "pci_bus_id")
# Every reading, and the older one that stands in for it.
ROWS = [row for reading in READINGS for row in (reading, reading.older) if row is not None]
FUNCTIONS = {row.function.__name__ for row in ROWS}


class FakeDriver(Driver):
    """Gives each function its name or numbers, whichever it is read as."""

    def otherwise(self, name: str) -> Any:
        return name if name in OPENING else _Answer()


class _Answer(int):
    """One number, or a structure of them, as the function has it."""

    gpu = memory = total = used = free = 1

    def __iter__(self) -> Iterator[int]:
        return iter((1, 1, 1, 1))


class PowerSlowly:
    """A part that asks what a row of READINGS asks too."""

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        milliwatts = ask(pynvml.nvmlDeviceGetPowerUsage)
        return {} if milliwatts is None else {"power_milliwatts": milliwatts}


def read(driver: FakeDriver) -> GpuSample:
    return Gpu(0, driver, 60.0).read()


def readings_of(sample: GpuSample) -> set[str]:
    fields = {field for reading in READINGS for field in reading.fields}
    return {field for field in fields if getattr(sample, field) is not None}


def failing(code: int, *names: str) -> FakeDriver:
    """Return a driver of which these functions fail."""
    driver = FakeDriver()
    driver.fail(*names, code=code)
    return driver


def test_every_reading_that_fails_is_missed_alone() -> None:
    """A function that this GPU does not have costs its own fields and no others."""
    everything = readings_of(read(FakeDriver()))
    for name in FUNCTIONS:
        sample = read(failing(pynvml.NVML_ERROR_NOT_SUPPORTED, name))
        left = {field for row in ROWS if row.function.__name__ != name for field in row.fields}

        assert sample.up
        assert readings_of(sample) == everything & left


def test_field_has_one_reading_and_an_older_one_fills_the_same() -> None:
    """A reading's fields say when it is due: no two readings share one."""
    fields = [field for reading in READINGS for field in reading.fields]

    assert len(fields) == len(set(fields))
    assert all(r.older is None or r.older.fields == r.fields for r in READINGS)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
    ],
)
def test_gpu_that_supports_nothing_is_up_and_not_asked_again(code: int) -> None:
    """What a GPU does not support has no reading, and is not read every second."""
    driver = failing(code, *FUNCTIONS)
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().up
    assert gpu.read_slow() == {}
    driver.asked.clear()

    sample = gpu.read()
    assert (sample.up, readings_of(sample), gpu.read_slow()) == (True, set(), {})
    assert not driver.asked


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_TIMEOUT])
def test_reading_that_failed_is_asked_again(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """After its time what was unsupported, as a new permission may come; a timeout at once."""
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        monkeypatch.setattr(query_module, "UNSUPPORTED_FOR_SECONDS", 0.0)
    driver = failing(code, POWER)
    gpu = Gpu(0, driver, 60.0)
    sample = gpu.read()
    assert (sample.up, sample.power_milliwatts) == (True, None)
    driver.answers.clear()

    assert gpu.read().power_milliwatts is not None


def test_older_function_stands_in_only_where_the_newer_is_not_supported() -> None:
    """After a failure that passes the newer is called again: the older means something else.

    A driver before 510 has only version 1 of the memory info.
    """
    memory = "nvmlDeviceGetMemoryInfo"
    driver = failing(pynvml.NVML_ERROR_TIMEOUT, memory)
    assert Gpu(0, driver, 60.0).read().memory_used_bytes is None
    assert driver.asked[memory] == 1

    def version_1(handle: object, *version: object) -> _Answer:
        if version:
            raise Fails(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return _Answer()

    old = FakeDriver(nvmlDeviceGetMemoryInfo=version_1)
    assert read(old).memory_used_bytes is not None
    assert old.asked["nvmlDeviceGetMemoryInfo"] == 2


def test_slow_reading_is_kept_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked seldom stays on the page meanwhile, and is gone when it cannot be read."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    seldom = Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage, every_seconds=10.0)
    always = Reading(("gpu_temperature_celsius",), pynvml.nvmlDeviceGetTemperature)
    monkeypatch.setattr(gpu_module, "READINGS", (seldom, always))
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0)

    def power_at(now: float) -> int | None:
        clock.now = now
        return gpu.read().power_milliwatts

    assert [power_at(now) for now in (1000.0, 1009.0, 1010.0)] == [0, 0, 0]
    assert driver.asked[POWER] == 2
    driver.fail(POWER, code=pynvml.NVML_ERROR_TIMEOUT)
    assert power_at(1020.0) is None
    driver.answers.clear()
    assert power_at(1021.0) == 0  # A failure is not kept for that long.


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_lost_gpu_keeps_its_identity_and_is_left_alone_for_a_while(code: int) -> None:
    """A lost GPU is down with no reading, and opened again only after the back-off."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().up
    driver.fail(POWER, code=code)

    sample = gpu.read()
    driver.asked.clear()
    assert (sample.up, sample.uuid) == (False, "nvmlDeviceGetUUID")
    assert readings_of(sample) == set()
    assert (gpu.read(), gpu.read_slow()) == (sample, {})
    assert not driver.asked


def test_gpu_that_only_has_errors_to_tell_is_down() -> None:
    """A GPU is not up just because it is not "lost": in a container NVML may say 999 to all."""
    assert not read(failing(pynvml.NVML_ERROR_UNKNOWN, *FUNCTIONS)).up


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH]
)
def test_replaced_driver_ends_the_process(code: int) -> None:
    """If only a new process can continue, both kinds of reading pass the failure up."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    gpu.read()
    driver.fail(*FUNCTIONS, code=code)

    for one_kind in (gpu.read, gpu.read_slow):
        with pytest.raises(CallFailed):
            one_kind()


def test_gpu_without_a_name_still_counts() -> None:
    """An identity that cannot be read is empty, and the readings are there."""
    sample = read(failing(pynvml.NVML_ERROR_NOT_SUPPORTED, "pci_bus_id"))

    assert (sample.up, sample.pci_bus_id) == (True, "")
    assert sample.power_milliwatts is not None
