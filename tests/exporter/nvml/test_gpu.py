import time
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from exporter.nvml import ask as ask_module
from exporter.nvml import gpu as gpu_module
from exporter.nvml.ask import Ask
from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.gpu import Gpu
from exporter.nvml.readings import READINGS, Reading
from exporter.nvml.sample import GpuSample

OPENING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "pci_bus_id")
FUNCTIONS = {reading.function.__name__ for reading in READINGS}


class FakeDriver(Calls):
    """Answers calls from *answers*, by function: a number is an error code, else the value."""

    def __init__(self, **codes: int) -> None:
        super().__init__(60.0, 60.0)
        self.codes = codes
        self.asked: list[str] = []

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = function.__name__
        self.asked.append(name)
        if name in self.codes:
            raise CallFailed(name, gpu, self.codes[name], "as the test wants")
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


def test_every_reading_that_fails_is_missed_alone() -> None:
    """A function that this GPU does not have costs its own fields and no others."""
    everything = readings_of(read(FakeDriver()))
    for reading in READINGS:
        name = reading.function.__name__
        sample = read(FakeDriver(**{name: pynvml.NVML_ERROR_NOT_SUPPORTED}))
        older = {field for r in READINGS if r.function.__name__ != name for field in r.fields}
        lost = {f for r in READINGS if r.function.__name__ == name for f in r.fields} - older

        assert sample.up
        assert everything - readings_of(sample) == lost


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
    ],
)
def test_gpu_that_supports_nothing_is_up_and_not_asked_again(code: int) -> None:
    """What a GPU cannot tell is no reading, and is not asked for every second."""
    driver = FakeDriver(**dict.fromkeys(FUNCTIONS, code))
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().up
    assert gpu.read_slow() == {}
    driver.asked.clear()

    sample = gpu.read()

    assert sample.up
    assert readings_of(sample) == set()
    assert gpu.read_slow() == {}
    assert driver.asked == []


def test_unsupported_reading_is_asked_again_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver update or a new permission is noticed."""
    monkeypatch.setattr(ask_module, "UNSUPPORTED_FOR_SECONDS", 0.0)
    driver = FakeDriver(nvmlDeviceGetPowerUsage=pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().power_milliwatts is None
    driver.codes.clear()

    assert gpu.read().power_milliwatts is not None


def test_older_functions_stand_in_where_newer_ones_are_missing() -> None:
    """Of two rows for the same field the later one, the older function, is asked only if needed."""
    memory = "nvmlDeviceGetMemoryInfo"
    modern = FakeDriver()
    assert read(modern).memory_used_bytes is not None
    assert modern.asked.count(memory) == 1

    old = VersionOneOnly()
    assert read(old).memory_used_bytes is not None
    assert old.asked.count(memory) == 2


class VersionOneOnly(FakeDriver):
    """A driver before 510, which has only version 1 of the memory info."""

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        answer = super().__call__(gpu, function, *args, **kwargs)
        if pynvml.nvmlMemory_v2 in args:
            code = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
            raise CallFailed(function.__name__, gpu, code, "as the test wants")
        return answer


def test_slow_reading_is_kept_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked seldom stays on the page meanwhile, and is gone when it cannot be read."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    name = "nvmlDeviceGetPowerUsage"
    seldom = Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage, every_seconds=10.0)
    monkeypatch.setattr(gpu_module, "READINGS", (seldom,))
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0)
    readings = []
    for now in (1000.0, 1009.0, 1010.0):
        readings.append(gpu.read().power_milliwatts)
    assert readings == [0, 0, 0]
    assert driver.asked.count(name) == 2

    driver.codes = {name: pynvml.NVML_ERROR_TIMEOUT}
    now = 1020.0
    assert gpu.read().power_milliwatts is None


def test_passing_failure_costs_one_reading_once() -> None:
    """A timeout is no reading this time, and the next time it is asked again."""
    driver = FakeDriver(nvmlDeviceGetPowerUsage=pynvml.NVML_ERROR_TIMEOUT)
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    sample = gpu.read()
    assert sample.up
    assert sample.power_milliwatts is None
    driver.codes.clear()

    assert gpu.read().power_milliwatts is not None


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_lost_gpu_keeps_its_identity_and_is_left_alone_for_a_while(code: int) -> None:
    """A lost GPU is down with no reading, and opened again only after the back-off."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    assert gpu.read().up
    driver.codes = {"nvmlDeviceGetPowerUsage": code}

    sample = gpu.read()
    driver.asked.clear()

    assert not sample.up
    assert sample.uuid == "nvmlDeviceGetUUID"
    assert readings_of(sample) == set()
    assert gpu.read() == sample
    assert gpu.read_slow() == {}
    assert driver.asked == []


def test_gpu_that_only_has_errors_to_tell_is_down() -> None:
    """A GPU is not up just because it is not "lost": in a container NVML may say 999 to all."""
    assert not read(FakeDriver(**dict.fromkeys(FUNCTIONS, pynvml.NVML_ERROR_UNKNOWN))).up


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH]
)
def test_replaced_driver_ends_the_process(code: int) -> None:
    """When only a new process can go on the failure is passed up, from both kinds of reading."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    gpu.read()
    driver.codes = dict.fromkeys(FUNCTIONS, code)

    with pytest.raises(CallFailed):
        gpu.read()
    with pytest.raises(CallFailed):
        gpu.read_slow()


def test_gpu_without_a_name_still_counts() -> None:
    """An identity that cannot be read is empty, and the readings are there."""
    sample = read(FakeDriver(pci_bus_id=pynvml.NVML_ERROR_NOT_SUPPORTED))

    assert sample.up
    assert sample.pci_bus_id == ""
    assert sample.power_milliwatts is not None
