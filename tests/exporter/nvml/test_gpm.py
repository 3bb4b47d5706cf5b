"""The activity of a GPU from its profiling counters, and of the parts of one that MIG divides."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
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
from exporter.nvml.readings.mig import MODE_SECONDS, MigActivity, MigDevices
from exporter.nvml.sample import GpuProcess, GpuSample, MigDevice
from tests import nvmlstub
from tests.exporter.nvml.driver import Driver, Fails
from tests.exporter.nvml.stub import PATIENT, Scenario, gpus, supervised, wait_for

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


GIB = 1 << 30
DIVIDED = (
    MigDevice("MIG-00000000-0000-0000-0001-000000000000", 9, 0, "1g.10gb", 10 * GIB, GIB, 80.0),
    MigDevice("MIG-00000000-0000-0000-0002-000000000000", 2, 0, "3g.40gb", 40 * GIB, GIB, 80.0),
)


@pytest.fixture
def environment(library: Path, scenario: Scenario, tmp_path: Path) -> dict[str, str]:
    """Two GPUs, and a process that computes on each."""
    processes = tmp_path / "processes"
    processes.write_text("0 4711 1024 2\n1 4712 -1\n")
    return {
        **nvmlstub.environment(library, 2, scenario.path),
        "STUB_PROCESSES": str(processes),
    }


def readings(environment: dict[str, str]) -> tuple[GpuSample, ...]:
    """Return both GPUs as soon as they have a place and MIG devices of one are active."""

    def is_active(gpu: GpuSample) -> bool:
        return any(device.sm_active_percent is not None for device in gpu.mig_devices or ())

    with supervised(PATIENT, environment) as supervisor:
        wait_for(lambda: any(map(is_active, gpus(supervisor))))
        return gpus(supervisor)


def test_divided_gpu_has_its_devices_and_what_is_left(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """NVML refuses utilization then: it is absent, for this GPU alone, and all else stays."""
    scenario.play("nvmlDeviceGetMigMode 0 =1")
    divided, whole = readings(environment)

    assert divided.mig_devices == DIVIDED
    assert divided.processes == (GpuProcess(4711, 1024, 2),)
    assert divided.gpu_busy_percent is None
    assert divided.memory_total_bytes == 80 * GIB
    assert whole.mig_devices is None
    assert whole.gpu_busy_percent is not None
    assert (whole.minor_number, whole.numa_node) == (1, 0)
    assert whole.cpu_affinity == tuple(range(32))
    assert whole.processes == (GpuProcess(4712),)


def test_what_may_not_be_read_costs_only_itself(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """Memory, profile and activity need a right, a driver or a GPU that not everybody has."""
    scenario.play(
        "nvmlDeviceGetMigMode * =1",
        "nvmlDeviceGetMemoryInfo_v2 * 4",
        "nvmlDeviceGetMemoryInfo 0 4",
        "nvmlDeviceGetName 0 3",
        "nvmlGpmQueryDeviceSupport 0 =0",
    )
    without, older = readings(environment)

    assert without.mig_devices == tuple(
        MigDevice(device.uuid, device.gpu_instance, 0, "") for device in DIVIDED
    )
    assert older.mig_devices is not None
    assert [device.memory_total_bytes for device in older.mig_devices] == [10 * GIB, 40 * GIB]


def test_mode_is_noticed_when_it_changes_and_kept_when_it_cannot_be_read() -> None:
    """An operator's change shows within seconds; a driver that times out changes nothing."""
    device = DIVIDED[0]
    driver = Driver(nvmlDeviceGetMigMode=(0, 0), mig_devices=(device,))
    part, ask = MigDevices(window_seconds=15.0), driver.opened()

    def read(now: float, mode: object) -> dict[str, Any]:
        driver.answers["nvmlDeviceGetMigMode"] = mode
        return part.read(ask, now)

    assert read(100.0, (0, 0)) == {}
    assert read(101.0, (1, 1)) == {}
    divided = {"mig_devices": (replace(device, sm_active_percent=None),)}
    assert read(100.0 + MODE_SECONDS, (1, 1)) == divided
    assert read(100.0 + 2 * MODE_SECONDS, Fails(pynvml.NVML_ERROR_TIMEOUT)) == divided
    assert read(100.0 + 3 * MODE_SECONDS, (0, 0)) == {}
    assert driver.asked["nvmlDeviceGetMigMode"] == 4


def half_active() -> Driver:
    return Driver(
        gpm_support=True,
        gpm_memory=lambda: Memory(object()),
        mig_sample="a sample",
        gpm_metrics={SM: 50.0},
    )


@pytest.mark.parametrize("function", ["gpm_support", "gpm_memory", "mig_sample", "gpm_metrics"])
def test_gpu_without_gpm_has_no_activity(function: str) -> None:
    """An older GPU, or a user without the right to it: no reading, whatever is missing."""
    driver, activity = half_active(), MigActivity(15.0)
    driver.answers[function] = Fails()
    ask = driver.opened()

    assert [activity.read(ask, now, [9]) for now in (100.0, 101.0, 102.0)] == [{}, {}, {}]


def test_instance_is_compared_only_with_itself() -> None:
    """The first sample of a new instance, or after the GPU was opened anew, has none before it."""
    driver, activity = half_active(), MigActivity(15.0)
    ask = driver.opened()

    assert activity.read(ask, 100.0, [9]) == {}
    assert activity.read(ask, 101.0, [9, 2]) == {9: 50.0}
    assert activity.read(ask, 102.0, [9, 2]) == {9: 50.0, 2: 50.0}
    assert activity.read(driver.opened(), 103.0, [9, 2]) == {}
