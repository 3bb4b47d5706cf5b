import math
from dataclasses import dataclass
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.gpm import (
    ACTIVITY,
    FIRST_SECONDS,
    METRICS,
    PCIE,
    SAMPLE_SECONDS,
    Gpm,
    Memory,
    gpm_metrics,
    gpm_support,
)
from tests.exporter.nvml.driver import Driver, Fails

SM, DRAM = pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL


@dataclass(eq=False)
class Sample:
    """NVML's memory for a sample."""

    taken_at: float = math.nan
    busy_seconds: float = math.nan


class FakeGpm(Driver):
    """A GPU with GPM: each metric tells the share of *busy_seconds* in the time between samples."""

    def __init__(self) -> None:
        super().__init__(
            gpm_support=True,
            gpm_memory=Sample,
            gpm_sample=self.take,
            gpm_metrics=self.compare,
        )
        self.now = 0.0
        self.busy_seconds = 100.0
        self.refused: set[int] = set()

    def take(self, handle: object, sample: Sample) -> Sample:
        sample.taken_at, sample.busy_seconds = self.now, self.busy_seconds
        return sample

    def compare(self, earlier: Sample, later: Sample) -> dict[int, float]:
        busy = later.busy_seconds - earlier.busy_seconds
        percent = 100 * busy / (later.taken_at - earlier.taken_at)
        return {metric: percent for metric in METRICS if metric not in self.refused}


class Reads:
    """One GPU, read now and then."""

    def __init__(self, window_seconds: float = 15.0) -> None:
        self.driver = FakeGpm()
        self.gpm = Gpm(window_seconds)
        self.ask = self.driver.opened()

    def after(self, seconds: float, busy_seconds: float = 0.0) -> dict[str, Any]:
        """Let time go by, and return what is told then."""
        self.driver.now += seconds
        self.driver.busy_seconds += busy_seconds
        return self.gpm.read(self.ask, self.driver.now)

    def sm(self, seconds: float, busy_seconds: float) -> float | None:
        return self.after(seconds, busy_seconds).get("sm_active_percent")

    def has_all(self) -> bool:
        return all(self.gpm.may_tell(metric) for metric in METRICS)

    def refuses_all(self) -> bool:
        return not any(self.gpm.may_tell(metric) for metric in METRICS)


def test_load_between_two_readings_is_seen_whole() -> None:
    """A burst of a third of the time is a third, although it is over at each reading."""
    gpu = Reads()
    assert gpu.after(0.0) == {}
    assert gpu.after(1.0, 0.3) == pytest.approx(dict.fromkeys(ACTIVITY.values(), 30.0))
    # That second was short, so it does not weigh as much as five.
    assert gpu.sm(SAMPLE_SECONDS, 2.0) == pytest.approx(40.0)
    assert gpu.sm(SAMPLE_SECONDS, 1.0) == pytest.approx(30.0)
    assert [gpu.gpm.mean(metric) for metric in PCIE] == pytest.approx([30.0, 30.0])
    assert gpu.has_all()


@pytest.mark.parametrize(
    ("window_seconds", "taken"),
    [(15.0, [1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4]), (3.0, list(range(1, 13)))],
)
def test_samples_are_taken_at_their_own_pace(window_seconds: float, taken: list[int]) -> None:
    """The first reading comes soon; then there are three samples in a window, however short."""
    gpu = Reads(window_seconds)
    told, asked = [], []
    for _ in range(12):
        told.append(gpu.sm(1.0, 0.5))
        asked.append(gpu.driver.asked["gpm_sample"])

    assert told == [None, *[pytest.approx(50.0)] * 11]
    assert asked == taken


def test_activity_is_the_mean_over_the_window() -> None:
    """What is older than the window no longer counts."""
    gpu = Reads(3.0)
    gpu.after(0.0)

    assert [gpu.sm(1.0, busy) for busy in (1.0, 1.0, 1.0, 0.2, 0.4, 0.3)][-1] == pytest.approx(30.0)


def test_silence_longer_than_the_window_is_not_told_as_its_mean() -> None:
    """After a minute without a sample the next two are compared, and not those a minute apart."""
    gpu = Reads()
    gpu.after(0.0)
    gpu.after(1.0, 0.9)

    assert gpu.after(60.0, 60.0) == {}
    assert gpu.sm(1.0, 0.2) == pytest.approx(20.0)


def test_gpu_that_was_reset_is_not_compared_with_what_it_was() -> None:
    """Its counters may have restarted at 0. Opened again, it takes no more of NVML's memory."""
    gpu = Reads()
    for _ in range(3):
        gpu.ask = gpu.driver.opened()
        gpu.driver.busy_seconds = 0.0
        assert gpu.after(1.0) == {}
        assert gpu.sm(1.0, 0.5) == pytest.approx(50.0)

    assert gpu.driver.asked["gpm_memory"] == 2


def test_samples_are_not_taken_faster_than_the_counters_are_refreshed() -> None:
    """Not even for the first reading are two samples too close to be compared."""
    gpu = Reads()
    gpu.after(0.0)

    assert gpu.after(FIRST_SECONDS - 0.01, 0.1) == {}
    assert gpu.driver.asked["gpm_sample"] == 1
    assert gpu.after(0.02) != {}
    assert gpu.driver.asked["gpm_sample"] == 2


def test_metric_that_is_refused_is_missed_alone() -> None:
    """A metric that this GPU has not takes no other with it."""
    gpu = Reads()
    gpu.driver.refused = {DRAM}
    gpu.after(0.0)

    assert set(gpu.after(1.0, 0.5)) == set(ACTIVITY.values()) - {"dram_active_percent"}
    assert (gpu.gpm.may_tell(DRAM), gpu.gpm.may_tell(SM)) == (False, True)


@pytest.mark.parametrize("function", ["gpm_support", "gpm_sample", "gpm_metrics", "gpm_memory"])
def test_gpu_that_only_seems_to_have_gpm_tells_nothing(function: str) -> None:
    """Those before Hopper refuse at once, virtual machines when a sample is taken."""
    gpu = Reads()
    gpu.driver.answers[function] = Fails()

    assert [gpu.after(SAMPLE_SECONDS, 0.5) for _ in range(5)] == [{}] * 5
    assert gpu.refuses_all()
    assert gpu.driver.asked[function] <= 2  # The samples change places once.


@pytest.mark.parametrize("function", ["gpm_sample", "gpm_metrics"])
def test_failure_that_passes_is_no_reading_once(function: str) -> None:
    """After a timeout the next reading covers all the time, and no other source is tried."""
    gpu = Reads()
    gpu.after(0.0)
    assert gpu.after(1.0, 0.2) != {}
    answer = gpu.driver.answers[function]
    gpu.driver.fail(function, code=pynvml.NVML_ERROR_TIMEOUT)
    assert gpu.after(SAMPLE_SECONDS, 2.4) == {}
    assert [gpu.gpm.mean(metric) for metric in METRICS] == [None] * len(METRICS)
    assert gpu.has_all()
    gpu.driver.answers[function] = answer

    assert gpu.sm(1.0, 0.0) == pytest.approx(100 * 2.4 / (SAMPLE_SECONDS + 1.0))


def test_support_is_what_the_driver_says_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call succeeds on every GPU: its answer decides."""
    support = pynvml.c_nvmlGpmSupport_t(isSupportedDevice=0)
    monkeypatch.setattr(pynvml, "nvmlGpmQueryDeviceSupport", lambda handle: support)
    with pytest.raises(pynvml.NVMLError) as raised:
        gpm_support("handle")
    assert raised.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED
    support.isSupportedDevice = 1

    assert gpm_support("handle") is True


def test_each_metric_has_a_result_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric that failed, or is not a number, is left out; one call reads them all."""

    def answer(request: Any) -> None:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        assert request.numMetrics == len(METRICS)
        for index in range(request.numMetrics):
            entry = request.metrics[index]
            entry.value = math.nan if entry.metricId == SM else entry.metricId + 0.5
            entry.nvmlReturn = pynvml.NVML_ERROR_UNKNOWN if entry.metricId == DRAM else 0

    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", answer)
    told = gpm_metrics(*[Memory(pynvml.c_nvmlGpmSample_t()) for _ in range(2)])

    assert told == {metric: metric + 0.5 for metric in METRICS if metric not in (SM, DRAM)}
