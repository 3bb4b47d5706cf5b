"""One GPU as the worker reads it: calls with a limit, on threads that a hang does not hold up."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import PROCESS_OBSOLETE, CallFailed, Calls
from exporter.nvml.readings import query as query_module
from exporter.nvml.readings.one_call import READINGS, Reading
from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import GpuSample
from exporter.nvml.worker import gpu as gpu_module
from exporter.nvml.worker import threads as threads_module
from exporter.nvml.worker.gpu import Gpu
from exporter.nvml.worker.threads import Threads
from tests.exporter.clock import Clock
from tests.exporter.nvml.driver import Driver

CALLS = Calls(limit_seconds=60.0, slow_limit_seconds=60.0)


def test_answer_that_pynvml_cannot_read_costs_that_reading_alone() -> None:
    """What else pynvml raises, as on a name that is no UTF-8, is a failure of that call."""

    def nvmlDeviceGetName() -> str:
        return b"\xff".decode()

    with pytest.raises(CallFailed, match="nvmlDeviceGetName on GPU 0 returned 999: Unicode") as got:
        CALLS(0, nvmlDeviceGetName)

    assert got.value.code == pynvml.NVML_ERROR_UNKNOWN


def test_waking_a_gpu_may_take_longer() -> None:
    """Opening NVML takes seconds per GPU without a persistence daemon: that is not stuck."""
    calls = Calls(limit_seconds=0.0, slow_limit_seconds=60.0)
    stuck = []

    def nvmlInit() -> None:
        stuck.append(calls.stuck())

    calls(None, nvmlInit)

    assert stuck == [None]


def ran(futures: list[Future[int]]) -> set[int]:
    """Return the threads that did the work of *futures*."""
    done, left = wait(futures, timeout=20)
    assert not left
    return {future.result() for future in done}


class Blocked:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        self.go_on.wait(20)
        return threading.get_ident()


def test_quick_work_is_done_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no time to speak of costs no second thread, nor does what waits for a moment."""
    monkeypatch.setattr(threads_module, "HELD_UP_SECONDS", 20.0)
    threads, blocked = Threads(), Blocked()
    used = {thread for _ in range(20) for thread in ran([threads.submit(threading.get_ident)])}
    first = threads.submit(blocked)
    assert blocked.begun.wait(20)
    second = threads.submit(threading.get_ident)
    blocked.go_on.set()

    assert len(used | ran([first, second])) == 1
    assert threading.get_ident() not in used


POWER = "nvmlDeviceGetPowerUsage"
OPENING = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "pci_bus_id")
# Every reading, and the older one that stands in for it.
ROWS = [row for reading in READINGS for row in (reading, reading.older) if row is not None]
FUNCTIONS = {row.function.__name__ for row in ROWS}


class FakeDriver(Driver):
    """Gives each function its name or numbers, whichever it is read as."""

    def otherwise(self, name: str) -> Any:
        return name if name in OPENING else _Answer()

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        return self._answer(function.__name__, *args)


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


def test_slow_reading_is_kept_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked seldom stays on the page meanwhile, and is gone when it cannot be read."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    seldom = Reading(("power_milliwatts",), pynvml.nvmlDeviceGetPowerUsage, every_seconds=10.0)
    always = Reading(("gpu_temperature_celsius",), pynvml.nvmlDeviceGetTemperature)
    monkeypatch.setattr(gpu_module, "READINGS", (seldom, always))
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0)

    def power_at(now: float) -> int | None:
        clock.seconds = now
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
    assert not read(failing(pynvml.NVML_ERROR_GPU_IS_LOST, "nvmlDeviceGetHandleByIndex")).up


@pytest.mark.parametrize("code", sorted(PROCESS_OBSOLETE))
def test_replaced_driver_ends_the_process(code: int) -> None:
    """If only a new process can continue, both kinds of reading pass the failure up."""
    driver = FakeDriver()
    gpu = Gpu(0, driver, 60.0, slow=[PowerSlowly()])
    gpu.read()
    driver.fail(*FUNCTIONS, code=code)

    for one_kind in (gpu.read, gpu.read_slow):
        with pytest.raises(CallFailed):
            one_kind()
