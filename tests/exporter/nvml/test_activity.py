"""How busy a GPU was: by the driver's samples, and by profiling counters.

That of its parts, with MIG, is on a golden page.
"""

import math
from types import SimpleNamespace
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
)
from exporter.nvml.readings.utilization import Utilization
from tests.exporter.nvml.drivers import Driver, Fails

SM, DRAM = pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL


class Reads:
    """A GPU that is read now and then; each metric tells its busy share of the time in between."""

    def __init__(self, window_seconds: float = 15.0) -> None:
        self.driver = Driver(
            gpm_support=True,
            gpm_memory=lambda: Memory({}),
            gpm_sample=self.take,
            gpm_metrics=self.compare,
        )
        self.ask = self.driver.opened()
        self.gpm = Gpm(window_seconds)
        self.now = 0.0
        self.busy_seconds = 100.0

    def take(self, handle: object, sample: Memory) -> Memory:
        sample.pointer.update(now=self.now, busy=self.busy_seconds)
        return sample

    def compare(self, earlier: Memory, later: Memory) -> dict[int, float]:
        seconds, busy = (later.pointer[each] - earlier.pointer[each] for each in ("now", "busy"))
        return dict.fromkeys(METRICS, 100 * busy / seconds)

    def after(self, seconds: float, busy_seconds: float = 0.0) -> dict[str, Any]:
        """Let time go by, and return what is told then."""
        self.now += seconds
        self.busy_seconds += busy_seconds
        return self.gpm.read(self.ask, self.now)

    def may_tell(self) -> set[int]:
        return {metric for metric in METRICS if self.gpm.may_tell(metric)}


# Each reading: seconds since the one before, the busy ones among them, and the percentage told.
@pytest.mark.parametrize(
    ("window_seconds", "reads"),
    [
        # A burst of a third of the time is a third, although it is over at each reading. The first
        # second was short, so it does not weigh as much as five.
        (15.0, [(0, 0, None), (1, 0.3, 30), (SAMPLE_SECONDS, 2, 40), (SAMPLE_SECONDS, 1, 30)]),
        # What is older than the window no longer counts.
        (
            3.0,
            [(1, 0, None), *[(1, 1, 100)] * 3, (1, 0.2, 220 / 3), (1, 0.4, 160 / 3), (1, 0.3, 30)],
        ),
        # After a minute the next two samples are compared, and not those a minute apart.
        (15.0, [(0, 0, None), (1, 0.9, 90), (60, 60, None), (1, 0.2, 20)]),
        # Not even for the first reading are two samples closer than the counters are refreshed.
        (15.0, [(0, 0, None), (FIRST_SECONDS - 0.01, 0.1, None), (0.02, 0, 100 * 0.1 / 0.21)]),
    ],
    ids=["bursts", "window", "silence", "refresh"],
)
def test_activity_is_the_mean_over_the_window(
    window_seconds: float, reads: list[tuple[float, float, float | None]]
) -> None:
    gpu = Reads(window_seconds)
    for seconds, busy, told in reads:
        assert gpu.after(seconds, busy) == pytest.approx(
            {} if told is None else dict.fromkeys(ACTIVITY.values(), told)
        )

    assert [gpu.gpm.mean(metric) for metric in PCIE] == pytest.approx([told] * 2)
    assert gpu.may_tell() == set(METRICS)


def test_gpu_that_was_reset_is_not_compared_with_what_it_was() -> None:
    """Its counters may have restarted at 0. Opened again, it takes no more of NVML's memory."""
    gpu = Reads()
    for _ in range(3):
        gpu.ask = gpu.driver.opened()
        gpu.busy_seconds = 0.0
        assert gpu.after(1.0) == {}
        assert gpu.after(1.0, 0.5)["sm_active_percent"] == pytest.approx(50.0)

    assert gpu.driver.asked["gpm_memory"] == 2


@pytest.mark.parametrize("function", ["gpm_support", "gpm_sample", "gpm_metrics", "gpm_memory"])
def test_gpu_that_only_seems_to_have_gpm_tells_nothing(function: str) -> None:
    """Those before Hopper refuse at once, virtual machines when a sample is taken."""
    gpu = Reads()
    gpu.driver.answers[function] = Fails()

    assert [gpu.after(SAMPLE_SECONDS, 0.5) for _ in range(5)] == [{}] * 5
    assert gpu.may_tell() == set()
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
    assert gpu.may_tell() == set(METRICS)
    gpu.driver.answers[function] = answer

    assert gpu.after(1.0)["sm_active_percent"] == pytest.approx(240 / (SAMPLE_SECONDS + 1.0))


def test_each_metric_has_a_result_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that failed, or is not a number, is left out, and takes no other with it."""

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


UTILIZATION = "nvmlDeviceGetUtilizationRates"
ANY_TIME = 1_700_000_000_000_000


class Samples(Driver):
    """A driver with samples (its time in µs, percent) or without such a call, and with rates."""

    def __init__(self, samples: list[tuple[int, int]] | Fails) -> None:
        super().__init__(nvmlDeviceGetSamples=self.get)
        self.samples = samples
        self.rates(50)
        self.asked_since: list[int] = []
        self._ask, self._utilization = self.opened(), Utilization(15.0)

    def rates(self, percent: int) -> None:
        self.answers[UTILIZATION] = SimpleNamespace(gpu=percent)

    def get(self, handle: object, kind: int, since: int) -> Any:
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        self.asked_since.append(since)
        if isinstance(self.samples, Fails):
            raise self.samples
        fresh = [sample for sample in self.samples if sample[0] > since]
        if not fresh:
            raise Fails(pynvml.NVML_ERROR_NOT_FOUND)
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, [
            SimpleNamespace(timeStamp=time, sampleValue=SimpleNamespace(uiVal=percent))
            for time, percent in fresh
        ]

    def busy(self, now: float) -> float | None:
        """Return the mean at a time of the worker's clock."""
        return self._utilization.read(self._ask, now).get("gpu_busy_percent")


def at(seconds: float, percent: int) -> tuple[int, int]:
    """A sample so many seconds after ANY_TIME."""
    return ANY_TIME + round(seconds * 1e6), percent


def test_without_samples_the_rates_of_the_window_are_averaged() -> None:
    """Each second's rate counts for the last 15 s and is then forgotten.

    A driver may call it invalid to have nothing new. A GPU that is split by MIG has neither, and
    nothing is made up.
    """
    gpu, told = Samples(Fails(pynvml.NVML_ERROR_INVALID_ARGUMENT)), []
    for now in range(100, 115):
        gpu.rates(100 if now < 110 else 40)
        told.append(gpu.busy(float(now)))

    assert told[-1] == 80.0
    assert gpu.busy(124.5) == 40.0
    gpu.answers[UTILIZATION] = Fails()
    assert gpu.busy(125.0) is None


def test_each_sample_counts_once_and_as_long_as_the_window() -> None:
    """The driver is asked each 5 s for what is new; a sample leaves the window by its own age.

    A dip of a fifth of a second is in the mean, though the rates never saw it.
    """
    samples: list[tuple[int, int]] = []
    gpu, told = Samples(samples), []
    for second in range(31):
        samples += [at(second + n / 5, 0 if (second, n) == (3, 0) else 100) for n in range(5)]
        told.append(gpu.busy(200.0 + second))

    assert gpu.asked_since == [
        0,
        *(ANY_TIME + second * 1_000_000 + 800_000 for second in (0, 5, 10, 15, 20, 25)),
    ]
    assert [busy is not None and busy < 100 for busy in told] == [
        *[False] * 5,
        *[True] * 15,
        *[False] * 11,
    ]
    assert told[5] == pytest.approx(100 * 29 / 30)


def test_silent_driver_keeps_the_window_and_then_leaves_it_to_the_rates() -> None:
    """No new samples for a while is no change; for longer than the window the rates stand in.

    Samples are stamped with the driver's clock; an hour less does not cost an hour.
    """
    gpu = Samples([at(3600.0, 90)])
    # From 116 on it is asked for all and gives the old sample again, none the newer for that.
    assert [gpu.busy(float(now)) for now in range(100, 160)] == [90.0] * 16 + [50] * 44

    for second in range(30):
        gpu.samples = [at(second, 70)]
        busy = gpu.busy(160.0 + second)
    assert busy == 70.0
