import logging
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.nvml import supervisor as supervisor_module
from exporter.nvml.process import WorkerProcess
from exporter.nvml.sample import NodeSample
from exporter.nvml.supervisor import NvmlSupervisor
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


def test_node_without_driver_has_a_worker_and_no_gpu(tmp_path: Path) -> None:
    """No GPU and no driver is a normal node: nothing fails and nothing is restarted."""
    with supervised(PATIENT, {"LD_LIBRARY_PATH": str(tmp_path)}) as supervisor:
        sample = wait_for_sample(supervisor, lambda sample: sample.gpus_visible is not None)

        assert sample.gpus_visible == 0
        assert sample.gpus == ()
        assert supervisor.worker_up
        assert supervisor.worker_restarts == 0


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


def test_crash_in_the_driver_is_mended(supervise: Supervise, scenario: Scenario) -> None:
    """A segmentation fault kills the worker only, and a new one is there within ten seconds."""
    supervisor = supervise(PATIENT)
    wait_for(lambda: ups(supervisor) == [True, True])
    first = supervisor.worker_pid

    begun = time.monotonic()
    scenario.play("nvmlDeviceGetTemperature 0 crash")
    wait_for(lambda: supervisor.worker_pid != first)
    scenario.play()
    wait_for(lambda: supervisor.worker_up and supervisor.worker_pid != first)

    assert time.monotonic() - begun < 10
    assert supervisor.worker_restarts >= 1


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


class Unkillable(WorkerProcess):
    """A worker that ends at once but stays, whatever is done to it, until it is *released*."""

    released = False
    started = 0

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.pid = 0
        Unkillable.started += 1

    def read_lines(self, timeout_seconds: float, wake: int) -> list[bytes] | None:
        return None

    def end(self, seconds: float = 0.0) -> int | None:
        return None

    def is_running(self) -> bool:
        return not Unkillable.released


def test_worker_that_cannot_be_killed_is_not_joined_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is never more than one worker asleep in the driver, and stopping does not wait."""
    monkeypatch.setattr(supervisor_module, "ABANDONED_POLL_SECONDS", 0.01)
    supervisor = NvmlSupervisor(PATIENT, restart_seconds=0.01, launch=Unkillable)
    supervisor.start()
    try:
        wait_for(lambda: "cannot be killed" in caplog.text)
        time.sleep(0.3)
        assert Unkillable.started == 1

        Unkillable.released = True
        wait_for(lambda: Unkillable.started >= 2)
        Unkillable.released = False
    finally:
        begun = time.monotonic()
        supervisor.stop()
    assert time.monotonic() - begun < 5


class Foreign(WorkerProcess):
    """A worker of another version of this package."""

    def read_lines(self, timeout_seconds: float, wake: int) -> list[bytes] | None:
        return [b'{"gpus":[],"stuck_call":null,"a_field_of_next_year":1}']


def test_line_of_another_version_is_a_failure_not_a_crash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After an upgrade under a running exporter the log says what to do, again and again."""
    environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    supervisor = NvmlSupervisor(PATIENT, environment, restart_seconds=0.05, launch=Foreign)
    supervisor.start()
    try:
        wait_for(lambda: supervisor.worker_restarts >= 2)
    finally:
        supervisor.stop()

    assert "for example after an upgrade without a restart of the exporter" in caplog.text
    assert supervisor.latest() is None


def fails_to_start(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
    raise OSError("no more processes")


def test_machine_that_cannot_start_a_process_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even a full process table ends the supervision."""
    supervisor = NvmlSupervisor(PATIENT, restart_seconds=0.05, launch=fails_to_start)
    supervisor.start()
    try:
        wait_for(lambda: supervisor.worker_restarts >= 2)
    finally:
        supervisor.stop()

    assert "cannot be started: no more processes" in caplog.text
    assert not supervisor.worker_up


def test_stop_leaves_no_process(supervise: Supervise, tmp_path: Path) -> None:
    """After stop() the worker is gone and no sample is served as if it were there."""
    with supervised(PATIENT, {"LD_LIBRARY_PATH": str(tmp_path)}) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        pid = supervisor.worker_pid

    assert not Path(f"/proc/{pid}").exists()
    assert not supervisor.worker_up


class ShortLived(WorkerProcess):
    """A worker that says one good line and ends, without being a process."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.pid = 0
        self._left: list[list[bytes]] = [[NodeSample(1.0, 0).to_json()]]

    def read_lines(self, timeout_seconds: float, wake: int) -> list[bytes] | None:
        return self._left.pop() if self._left else None

    def end(self, seconds: float = 0.0) -> int | None:
        return 1


def test_failures_long_past_do_not_make_the_next_restart_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that was well long enough is replaced as quickly as the first one."""
    monkeypatch.setattr(supervisor_module, "WELL_SECONDS", 0.0)
    supervisor = NvmlSupervisor(PATIENT, restart_seconds=0.01, launch=ShortLived)
    supervisor.start()
    try:
        # Were the wait still doubled, the twentieth restart would come after three hours.
        wait_for(lambda: supervisor.worker_restarts >= 20)
    finally:
        supervisor.stop()
