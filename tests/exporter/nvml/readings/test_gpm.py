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

    def __init__(self, **answers: Any) -> None:
        super().__init__(
            gpm_support=True,
            gpm_memory=Sample,
            gpm_sample=self.take,
            gpm_metrics=self.compare,
        )
        self.answers |= answers
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

    def work(self, seconds: float, busy_seconds: float) -> float:
        """Let time go by, and return what time it is then."""
        self.now += seconds
        self.busy_seconds += busy_seconds
        return self.now


def test_gpu_without_gpm_tells_nothing_and_is_asked_once() -> None:
    """GPUs before Hopper have no activity, and no metric is worth waiting for."""
    driver = FakeGpm(gpm_support=Fails())
    ask, gpm = driver.opened(), Gpm(15.0)

    assert [gpm.read(ask, now) for now in (1.0, 2.0)] == [{}, {}]
    assert driver.asked == {"gpm_support": 1}
    assert not any(gpm.may_tell(metric) for metric in METRICS)


def test_load_between_two_readings_is_seen_whole() -> None:
    """A burst of a third of the time is a third, although it is over at each reading."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(15.0)
    first = gpm.read(ask, driver.now)
    readings = [gpm.read(ask, driver.work(1.0, 0.3))]
    readings += [gpm.read(ask, driver.work(SAMPLE_SECONDS, busy)) for busy in (2.0, 1.0)]

    assert first == {}
    assert all(gpm.may_tell(metric) for metric in METRICS)
    assert readings[0] == pytest.approx(dict.fromkeys(ACTIVITY.values(), 30.0))
    # The second before that was short, so it does not weigh as much as five.
    assert readings[1] == pytest.approx(dict.fromkeys(ACTIVITY.values(), 40.0))
    assert readings[2] == pytest.approx(dict.fromkeys(ACTIVITY.values(), 30.0))
    assert [gpm.mean(metric) for metric in PCIE] == pytest.approx([30.0, 30.0])


def test_samples_are_taken_at_their_own_pace() -> None:
    """The first reading comes soon; then a sample every few seconds covers all of the time."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(15.0)
    told, asked = [], []
    for _ in range(12):
        told.append(gpm.read(ask, driver.work(1.0, 0.5)).get("sm_active_percent"))
        asked.append(driver.asked["gpm_sample"])

    assert told == [None, *[pytest.approx(50.0)] * 11]
    assert asked == [1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4]


def test_window_that_is_short_is_sampled_more_often() -> None:
    """There are three samples in it, however short it is."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(3.0)
    for _ in range(10):
        gpm.read(ask, driver.work(1.0, 0.5))

    assert driver.asked["gpm_sample"] == 10


def test_activity_is_the_mean_over_the_window() -> None:
    """What is older than the window no longer counts."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(3.0)
    gpm.read(ask, driver.now)
    for busy in (1.0, 1.0, 1.0, 0.2, 0.4, 0.3):
        told = gpm.read(ask, driver.work(1.0, busy))

    assert told["sm_active_percent"] == pytest.approx(30.0)


def test_silence_longer_than_the_window_is_not_told_as_its_mean() -> None:
    """After a minute without a sample the next two are compared, and not those a minute apart."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(15.0)
    gpm.read(ask, driver.now)
    gpm.read(ask, driver.work(1.0, 0.9))
    again = gpm.read(ask, driver.work(60.0, 60.0))

    assert again == {}
    assert gpm.read(ask, driver.work(1.0, 0.2))["sm_active_percent"] == pytest.approx(20.0)


def test_two_samples_are_all_that_is_ever_allocated() -> None:
    """A day of readings, and a GPU that is opened again, take no more of NVML's memory."""
    driver, gpm = FakeGpm(), Gpm(15.0)
    for _ in range(3):
        ask = driver.opened()
        for _ in range(10):
            gpm.read(ask, driver.work(1.0, 0.5))

    assert driver.asked["gpm_memory"] == 2


def test_gpu_that_was_reset_is_not_compared_with_what_it_was() -> None:
    """After a loss the first sample has no predecessor: its counters may have restarted at 0."""
    driver, gpm = FakeGpm(), Gpm(15.0)
    ask = driver.opened()
    gpm.read(ask, driver.now)
    gpm.read(ask, driver.work(1.0, 0.9))

    driver.busy_seconds = 0.0
    ask = driver.opened()
    first = gpm.read(ask, driver.work(1.0, 0.0))
    second = gpm.read(ask, driver.work(1.0, 0.5))

    assert first == {}
    assert second["sm_active_percent"] == pytest.approx(50.0)


def test_samples_are_not_taken_faster_than_the_counters_are_refreshed() -> None:
    """Not even for the first reading are two samples too close to be compared."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(15.0)
    gpm.read(ask, driver.now)

    assert gpm.read(ask, driver.work(FIRST_SECONDS - 0.01, 0.1)) == {}
    assert driver.asked["gpm_sample"] == 1
    assert gpm.read(ask, driver.work(0.02, 0.0)) != {}
    assert driver.asked["gpm_sample"] == 2


def test_metric_that_is_refused_is_missed_alone() -> None:
    """A metric that this GPU has not takes no other with it."""
    driver = FakeGpm()
    driver.refused = {DRAM}
    ask, gpm = driver.opened(), Gpm(15.0)
    gpm.read(ask, driver.now)
    told = gpm.read(ask, driver.work(1.0, 0.5))

    assert set(told) == set(ACTIVITY.values()) - {"dram_active_percent"}
    assert not gpm.may_tell(DRAM)
    assert gpm.may_tell(SM)


@pytest.mark.parametrize("function", ["gpm_sample", "gpm_metrics", "gpm_memory"])
def test_part_of_a_gpu_that_only_seems_to_have_gpm_tells_nothing(function: str) -> None:
    """Virtual machines are refused only when a sample is taken; that is noticed, and remembered."""
    driver = FakeGpm(**{function: Fails()})
    ask, gpm = driver.opened(), Gpm(15.0)
    told = [gpm.read(ask, driver.work(SAMPLE_SECONDS, 0.5)) for _ in range(5)]

    assert told == [{}] * 5
    assert not any(gpm.may_tell(metric) for metric in METRICS)
    assert driver.asked[function] <= 2  # The samples change places once.


@pytest.mark.parametrize("function", ["gpm_sample", "gpm_metrics"])
def test_failure_that_passes_is_no_reading_once(function: str) -> None:
    """After a timeout the next reading covers all the time, and no other source is tried."""
    driver = FakeGpm()
    ask, gpm = driver.opened(), Gpm(15.0)
    gpm.read(ask, driver.now)
    assert gpm.read(ask, driver.work(1.0, 0.2)) != {}
    answer = driver.answers[function]
    driver.answers[function] = Fails(pynvml.NVML_ERROR_TIMEOUT)
    failed = gpm.read(ask, driver.work(SAMPLE_SECONDS, 2.4))
    assert [gpm.mean(metric) for metric in METRICS] == [None] * len(METRICS)
    assert all(gpm.may_tell(metric) for metric in METRICS)
    driver.answers[function] = answer

    assert failed == {}
    told = gpm.read(ask, driver.work(1.0, 0.0))
    assert told["sm_active_percent"] == pytest.approx(100 * 2.4 / (SAMPLE_SECONDS + 1.0))


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
