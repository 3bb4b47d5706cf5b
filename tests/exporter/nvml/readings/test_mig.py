"""What the worker finds on the stub's GPU 0 when that is divided, and around it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.gpm import Memory
from exporter.nvml.readings.mig import MODE_SECONDS, SM, MigActivity, MigDevices
from exporter.nvml.sample import GpuProcess, GpuSample, MigDevice
from tests import nvmlstub
from tests.exporter.nvml.driver import Driver, Fails
from tests.exporter.nvml.stub import PATIENT, Scenario, gpus, supervised, wait_for

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
