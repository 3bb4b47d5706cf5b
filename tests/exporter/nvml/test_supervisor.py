"""A worker on the stub of the library: what its GPUs and its process do wrong hides nobody."""

import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.nvml import supervisor as supervisor_module
from tests import nvmlstub
from tests.exporter.nvml.stub import (
    ONLY_SAMPLED_PCIE,
    PATIENT,
    QUICK,
    Scenario,
    Supervise,
    is_stuck_in,
    supervised,
    ups,
    wait_for,
    wait_for_sample,
)
from tests.exporter.tried_again import tried_again


def test_lost_gpu_hides_nobody_and_comes_back(supervise: Supervise, scenario: Scenario) -> None:
    """A GPU that falls off the bus is down with no reading; its neighbour stays whole."""
    supervisor = supervise(PATIENT)
    wait_for(lambda: ups(supervisor) == [True, True])

    scenario.play("* 1 15")
    sample = wait_for_sample(supervisor, lambda sample: not sample.gpus[1].up)
    healthy, lost = sample.gpus
    assert healthy.power_milliwatts == 650500
    assert lost.power_milliwatts is None
    assert lost.uuid.endswith("0001")

    scenario.play()
    wait_for(lambda: ups(supervisor) == [True, True])
    assert supervisor.worker_restarts == 0


def test_gpu_lost_from_the_start_hides_nobody(supervise: Supervise, scenario: Scenario) -> None:
    """A GPU that cannot even be opened is listed as down, next to the others."""
    scenario.play("nvmlDeviceGetHandleByIndex_v2 0 15")
    supervisor = supervise(PATIENT)

    wait_for(lambda: ups(supervisor) == [False, True])
    assert wait_for_sample(supervisor, lambda sample: bool(sample.gpus)).gpus_visible == 2


def test_hung_gpu_hides_nobody_and_is_mended_by_a_new_worker(
    supervise: Supervise, scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that never returns costs its GPU only; the worker is replaced within ten seconds."""
    supervisor = supervise(QUICK)
    wait_for(lambda: ups(supervisor) == [True, True])

    scenario.play("nvmlDeviceGetPowerUsage 1 hang")
    begun = time.monotonic()
    stuck = wait_for_sample(supervisor, is_stuck_in("nvmlDeviceGetPowerUsage"))
    assert stuck.gpus[0].up
    scenario.play()
    wait_for(lambda: supervisor.worker_restarts > 0 and ups(supervisor) == [True, True])

    assert time.monotonic() - begun < 10
    assert "nvmlDeviceGetPowerUsage on GPU 1 has not returned for" in caplog.text


def test_gpu_that_hangs_for_good_does_not_hide_its_neighbour(
    supervise: Supervise, scenario: Scenario
) -> None:
    """The first hang gets a new worker at once; if that hangs too, it continues for a while."""
    supervisor = supervise(QUICK, restart_seconds=60.0)
    wait_for(lambda: ups(supervisor) == [True, True])

    scenario.play("nvmlDeviceGetUUID 1 hang", "nvmlDeviceGetPowerUsage 1 hang")
    wait_for(lambda: supervisor.worker_restarts == 1 and supervisor.worker_up)
    again = wait_for_sample(supervisor, is_stuck_in("nvmlDeviceGetUUID"))
    later = wait_for_sample(
        supervisor, lambda sample: sample.timestamp_seconds > again.timestamp_seconds + 0.3
    )

    assert [gpu.up for gpu in later.gpus] == [True, False]
    assert supervisor.worker_restarts == 1


def test_hang_while_nvml_opens_is_mended(supervise: Supervise, scenario: Scenario) -> None:
    """Nothing is known of the node while nvmlInit hangs; then a new worker finds its GPUs."""
    scenario.play("nvmlInitWithFlags * hang")
    supervisor = supervise(QUICK)
    stuck = wait_for_sample(supervisor, lambda sample: sample.stuck_call is not None)
    assert stuck.gpus_visible is None

    scenario.play()
    wait_for(lambda: ups(supervisor) == [True, True])


@tried_again
def test_worker_ended_from_outside_is_no_alarm(
    supervise: Supervise, caplog: pytest.LogCaptureFixture
) -> None:
    """systemd ends all processes of a service at once: that is replaced, and no warning."""
    caplog.clear()  # Of the attempt before.
    caplog.set_level(logging.INFO)
    supervisor = supervise(PATIENT)
    wait_for(lambda: supervisor.worker_up)
    first = supervisor.worker_pid
    assert first is not None

    os.kill(first, signal.SIGTERM)
    wait_for(lambda: supervisor.worker_up and supervisor.worker_pid != first)

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "NVML worker ended with status 0; it is replaced")
    ]


def test_silent_worker_is_replaced_and_its_last_sample_is_not_served(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process loses its series before they go stale, and is replaced."""
    monkeypatch.setattr(supervisor_module, "END_SECONDS", 0.1)
    # The next one comes late enough for the time without a sample to be seen.
    supervisor = supervise(PATIENT, restart_seconds=2.0, silent_seconds=0.7)
    wait_for(lambda: ups(supervisor) == [True, True])
    first = supervisor.worker_pid
    assert first is not None

    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: supervisor.latest() is None)
    assert not supervisor.worker_up
    wait_for(lambda: ups(supervisor) == [True, True])

    assert supervisor.worker_pid != first
    assert not Path(f"/proc/{first}").exists()


def test_slow_pcie_readings_delay_no_sample(supervise: Supervise, scenario: Scenario) -> None:
    """Eight GPUs whose PCIe readings block for ten intervals are sampled all the while."""
    scenario.play(*ONLY_SAMPLED_PCIE)
    supervisor = supervise(PATIENT, gpus=8, pcie_milliseconds=1000)
    timestamps = set()

    def has_pcie() -> bool:
        sample = supervisor.latest()
        if sample is None or not all(gpu.up for gpu in sample.gpus):
            return False
        timestamps.add(sample.timestamp_seconds)
        return any(gpu.pcie_receive_bytes_per_second is not None for gpu in sample.gpus)

    wait_for(has_pcie)
    # The first reading takes 2 s for its two directions, in which 20 samples are due.
    assert len(timestamps) > 5


def test_sleep_in_the_kernel_is_left_alone(
    supervise: Supervise, scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that no signal can end is not worth the worker that still reads the other GPUs."""
    supervisor = supervise(replace(QUICK, stale_seconds=1.5))
    wait_for(lambda: ups(supervisor) == [True, True])

    scenario.play("nvmlDeviceGetPowerUsage 1 hang-in-D")
    wait_for(lambda: "only the driver can end it" in caplog.text)
    wait_for(lambda: ups(supervisor) == [True, False])

    assert supervisor.worker_restarts == 0
    assert supervisor.worker_up


def has_open(path: Path) -> bool:
    """Whether any process has the file *path* open."""
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if file.readlink() == path:
                return True
        except OSError:
            continue  # It has ended meanwhile.
    return False


@tried_again
def test_released_gpus_are_open_in_no_process(library: Path, tmp_path: Path) -> None:
    """For as long as it is asked no process has the device files, and no sample is served."""
    device = tmp_path / "nvidia0"
    device.touch()
    mark = tmp_path / "shut-down"
    environment = nvmlstub.environment(library) | {
        "STUB_DEVICE": str(device),
        "STUB_SHUTDOWN_MARK": str(mark),
    }
    with supervised(PATIENT, environment) as supervisor:
        wait_for(lambda: ups(supervisor) == [True, True])
        assert has_open(device)

        supervisor.release(600)
        wait_for(lambda: supervisor.released)
        assert not has_open(device)
        assert mark.exists()
        assert supervisor.latest() is None
        assert (supervisor.worker_pid, supervisor.worker_up) == (None, False)

        supervisor.resume()
        wait_for(lambda: ups(supervisor) == [True, True])
        assert not supervisor.released
        assert supervisor.worker_restarts == 0


def test_release_does_not_wait_for_a_silent_worker(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is stopped, or hangs, is ended at once, not when its patience is over."""
    monkeypatch.setattr(supervisor_module, "LET_GO_SECONDS", 0.1)
    with supervised(PATIENT, nvmlstub.environment(library)) as supervisor:
        wait_for(lambda: ups(supervisor) == [True, True])
        pid = supervisor.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        supervisor.release(600)
        wait_for(lambda: supervisor.released)

        assert time.monotonic() - begun < PATIENT.patience_seconds / 2


def test_exporter_ends_in_seconds_while_a_call_hangs(library: Path, scenario: Scenario) -> None:
    """SIGTERM is not held up by a GPU that hangs, and the worker is gone after it."""
    environment = nvmlstub.environment(library, scenario=scenario.path)
    with supervised(PATIENT, environment) as supervisor:
        wait_for(lambda: ups(supervisor) == [True, True])
        pid = supervisor.worker_pid
        scenario.play("nvmlDeviceGetPowerUsage 1 hang")
        time.sleep(0.3)
        begun = time.monotonic()

    assert time.monotonic() - begun < 5
    assert not Path(f"/proc/{pid}").exists()
    assert not supervisor.worker_up
