from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import Calls
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.utilization import SAMPLES_EVERY_SECONDS, Utilization, gpu_samples
from exporter.nvml.readings.window import ReadingWindow

WINDOW_SECONDS = 15.0
ANY_TIME = 1_700_000_000_000_000


@dataclass
class FakeDriver:
    """A driver with samples (its time in µs, percent) or an error code, and with rates or none."""

    samples: list[tuple[int, int]] | int = pynvml.NVML_ERROR_NOT_SUPPORTED
    rates: tuple[int, int] | None = (50, 40)
    asked_since: list[int] = field(default_factory=list)

    def get_rates(self, handle: object) -> Any:
        if self.rates is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self.rates[0], memory=self.rates[1])

    def get_samples(self, handle: object, kind: int, since: int) -> Any:
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        self.asked_since.append(since)
        if isinstance(self.samples, int):
            raise pynvml.NVMLError(self.samples)
        fresh = [sample for sample in self.samples if sample[0] > since]
        if not fresh:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        values = [pynvml.c_nvmlSample_t(time, (0,)) for time, _ in fresh]
        for value, (_, percent) in zip(values, fresh, strict=True):
            value.sampleValue.uiVal = percent
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, values

    def sample(self, seconds: float, percent: int) -> None:
        """Take a sample *seconds* after ANY_TIME."""
        assert isinstance(self.samples, list)
        self.samples.append((ANY_TIME + round(seconds * 1e6), percent))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver without samples."""
    fake = FakeDriver()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", fake.get_rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", fake.get_samples)
    return fake


class Reads:
    """One GPU, read with times of the worker's clock."""

    def __init__(self) -> None:
        self._ask = Ask(0, object(), Calls(60.0, 60.0))
        self._utilization = Utilization(WINDOW_SECONDS)

    def all(self, now: float) -> dict[str, Any]:
        return self._utilization.read(self._ask, now)

    def busy(self, now: float) -> float:
        """Return the mean."""
        mean: float = self.all(now)["gpu_busy_percent"]
        return mean


def test_gpu_without_utilization_has_none(driver: FakeDriver) -> None:
    """A GPU that is split by MIG has neither samples nor rates, and nothing is made up."""
    driver.rates = None
    gpu = Reads()

    assert [gpu.all(float(now)) for now in range(20)] == [{}] * 20
    assert driver.asked_since == [0]


def test_without_samples_the_rates_of_the_window_are_averaged(driver: FakeDriver) -> None:
    """Each second's rate counts for the last 15 s and is then forgotten."""
    gpu = Reads()
    for now in range(100, 115):
        driver.rates = (100, 30) if now < 110 else (40, 60)
        values = gpu.all(float(now))

    assert values == {"gpu_busy_percent": 80.0}
    assert gpu.busy(124.5) == 40.0


def test_samples_show_what_falls_between_two_readings(driver: FakeDriver) -> None:
    """A dip of a fifth of a second is in the mean, though the rates never saw it.

    Samples from before the first reading leave the window by their own age.
    """
    driver.samples, driver.rates = [], (100, 40)
    gpu = Reads()
    for tick in range(50):
        driver.sample(tick / 5, 0 if tick == 12 else 100)

    assert gpu.busy(100.0) == 98.0
    driver.sample(18.0, 100)
    assert gpu.busy(108.0) == 100.0


def test_each_sample_counts_once_and_as_long_as_the_window(driver: FakeDriver) -> None:
    """The driver is asked each 5 s for what is new; a sample leaves the window by its own age."""
    driver.samples = []
    gpu, seen = Reads(), []
    for second in range(31):
        driver.sample(second, 0 if second == 3 else 100)
        seen.append(gpu.busy(200.0 + second) < 100)

    assert driver.asked_since == [
        0,
        *(ANY_TIME + second * 1_000_000 for second in range(0, 30, int(SAMPLES_EVERY_SECONDS))),
    ]
    assert seen == [False] * 5 + [True] * 15 + [False] * 11


def test_silent_driver_keeps_the_window_and_then_leaves_it_to_the_rates(driver: FakeDriver) -> None:
    """No new samples for a while is no change; for longer than the window the rates stand in."""
    driver.samples = []
    driver.sample(0.0, 90)
    gpu = Reads()
    # From 116 on it is asked for all and gives the old sample again, none the newer for that.
    assert [gpu.busy(float(now)) for now in range(100, 160)] == [90.0] * 16 + [50] * 44


def test_clock_that_was_set_back_is_noticed(driver: FakeDriver) -> None:
    """Samples are stamped with the driver's clock; an hour less does not cost an hour."""
    driver.samples = []
    driver.sample(3600.0, 90)
    gpu = Reads()
    assert gpu.busy(100.0) == 90.0
    driver.samples = []
    for second in range(1, 31):
        driver.sample(second, 70)
        busy = gpu.busy(100.0 + second)

    assert busy == 70.0


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT])
def test_no_new_samples_is_no_failure(driver: FakeDriver, code: int) -> None:
    """A GPU with nothing new to tell has answered."""
    driver.samples = code

    assert gpu_samples(object(), 1) == []


def test_empty_window_has_no_reading() -> None:
    window = ReadingWindow(15.0)

    assert window.mean() is None
