"""How a worker is supervised: what its GPUs and its process do wrong hides nobody."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest

from exporter.nvml import supervisor as supervisor_module
from exporter.nvml.process import WorkerProcess
from exporter.nvml.sample import NodeSample, NoGpuReason, StuckCall
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from tests import nvmlstub
from tests.exporter.nvml.drivers import (
    ONLY_SAMPLED_PCIE,
    PATIENT,
    QUICK,
    Scenario,
    Supervise,
    supervised,
    ups,
    wait_for_sample,
)
from tests.exporter.running import wait_until


def test_nvml_that_cannot_be_opened_is_opened_once_it_can(
    supervise: Supervise, scenario: Scenario, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is known of the node while nvmlInit hangs; each reason is told once.

    A driver that lists no GPU is closed, as NVML counts once; one that cannot count does not end
    the worker. One
    that comes after its library was loaded, and does not fit it, costs no minute: it gets a new
    process, and that is no failure.
    """
    scenario.play("nvmlInitWithFlags * hang")
    closed = tmp_path / "closed"
    supervisor = supervise(QUICK, STUB_SHUTDOWN_MARK=str(closed))
    stuck = wait_for_sample(supervisor, lambda sample: sample.stuck_call is not None)
    assert stuck.gpus_visible is None

    def why(line: str, reason: NoGpuReason) -> NodeSample:
        scenario.play(line)
        return wait_for_sample(supervisor, lambda sample: sample.error_reason == reason)

    before = why("nvmlInitWithFlags * 9", NoGpuReason.DRIVER_NOT_LOADED)
    restarts = supervisor.worker_restarts
    assert not closed.exists()
    why("nvmlDeviceGetCount_v2 * =0", NoGpuReason.NO_GPU)
    assert closed.exists()
    failed = why("nvmlDeviceGetCount_v2 * 999", NoGpuReason.OTHER)
    after = why("nvmlInitWithFlags * 18", NoGpuReason.VERSION_MISMATCH)

    assert "nvmlDeviceGetCount returned 999" in failed.error
    assert "in a container that lost its devices, restart the container" in failed.error
    assert before.worker_pid == failed.worker_pid != after.worker_pid
    assert supervisor.worker_restarts == restarts
    assert len([line for line in caplog.messages if line.startswith("no GPU can be read")]) == 4


def test_slow_pcie_readings_delay_no_sample(supervise: Supervise, scenario: Scenario) -> None:
    """Eight GPUs whose first PCIe readings block for ten intervals are sampled all the while."""
    scenario.play(*ONLY_SAMPLED_PCIE)
    supervisor = supervise(PATIENT, gpus=8, pcie_milliseconds=500)

    def received(sample: NodeSample) -> list[float | None]:
        return [gpu.pcie_receive_bytes_per_second for gpu in sample.gpus if gpu.up]

    wait_for_sample(supervisor, lambda sample: received(sample) == [None] * 8)
    wait_for_sample(supervisor, lambda sample: any(received(sample)))


def test_sleep_in_the_kernel_is_left_alone(
    library: Path, scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that no signal can end is not worth the worker that still reads the other GPUs.

    Nor does it hold up the exporter's end, after which the worker is gone.
    """
    environment = nvmlstub.environment(library, scenario=scenario.path)
    with supervised(replace(QUICK, stale_seconds=1.5), environment) as supervisor:
        wait_until(lambda: ups(supervisor) == [True, True])
        worker = supervisor.worker_pid
        scenario.play("nvmlDeviceGetPowerUsage 1 hang-in-D")
        wait_until(lambda: "only the driver can end it" in caplog.text)
        wait_until(lambda: ups(supervisor) == [True, False])

        assert supervisor.worker_restarts == 0
        assert supervisor.worker_up
    assert not Path(f"/proc/{worker}").exists()
    assert not supervisor.worker_up


def test_released_gpus_are_open_in_no_process(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it is asked no process has the device files, and no sample is served.

    A worker that is silent is ended at once, and not when the patience with it is over.
    """
    # However busy this machine is, the worker has the time to shut NVML down.
    monkeypatch.setattr(supervisor_module, "LET_GO_SECONDS", 20.0)
    device = tmp_path / "nvidia0"
    device.touch()
    supervisor = supervise(PATIENT, silent_seconds=600.0, STUB_DEVICE=str(device))
    wait_until(lambda: ups(supervisor) == [True, True])
    worker = supervisor.worker_pid
    assert worker is not None
    assert str(device) in [file.path for file in psutil.Process(worker).open_files()]

    supervisor.release(600)
    wait_until(lambda: supervisor.released)
    assert not Path(f"/proc/{worker}").exists()
    assert str(device) not in [file.path for file in psutil.Process().open_files()]
    assert supervisor.latest() is None
    assert (supervisor.worker_pid, supervisor.worker_up) == (None, False)

    supervisor.resume()
    wait_until(lambda: ups(supervisor) == [True, True])
    assert not supervisor.released
    assert supervisor.worker_restarts == 0

    monkeypatch.setattr(supervisor_module, "LET_GO_SECONDS", 0.1)
    os.kill(supervisor.worker_pid or 0, signal.SIGSTOP)
    supervisor.release(600)
    wait_until(lambda: supervisor.released)


RELOADED = "nvmlDeviceGetPowerUsage on GPU 0 returned 9: "


# What the stub plays, whether the worker is then asked to end, and how it ends.
@pytest.mark.parametrize(
    ("played", "is_asked", "status", "said", "is_shut_down"),
    [
        ("", True, 0, "", True),
        ("nvmlDeviceGetPowerUsage 1 hang", True, 0, "", False),
        ("nvmlShutdown * hang", True, -signal.SIGALRM, "", True),
        # A library that no longer fits the driver cannot be unloaded.
        ("nvmlDeviceGetPowerUsage * 9", False, 1, RELOADED, True),
        ("nvmlDeviceGetTemperature 1 crash", False, -signal.SIGSEGV, "in nvmlDeviceGetT", False),
    ],
    ids=["well", "reading hangs", "end hangs", "reloaded", "crash"],
)
def test_worker_that_ends_says_why_and_leaves_the_driver_in_good_order(
    supervise: Supervise,
    scenario: Scenario,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    played: str,
    is_asked: bool,
    status: int,
    said: str,
    is_shut_down: bool,
) -> None:
    """If a driver lets it: systemd ends all processes at once. Ctrl-C is left to the exporter.

    What a driver prints on standard output goes into the log, and not between the samples.
    """
    monkeypatch.setattr(supervisor_module, "END_SECONDS", 20.0)  # It is not killed before.
    caplog.set_level(logging.INFO)
    mark = tmp_path / "shut-down"
    stub = {"STUB_SHUTDOWN_MARK": str(mark), "STUB_CHATTER": "1"}
    supervisor = supervise(PATIENT, restart_seconds=60.0, **stub)
    wait_until(lambda: ups(supervisor) == [True, True])
    worker = supervisor.worker_pid or 0
    os.kill(worker, signal.SIGINT)
    scenario.play(played)
    if is_asked:
        for _ in range(2):  # Each sample is read before the next one begins.
            last = supervisor.latest()
            wait_until(lambda: supervisor.latest() != last)  # noqa: B023 # it is called at once
        os.kill(worker, signal.SIGTERM)
    wait_until(lambda: "NVML worker ended" in caplog.text)

    ended = caplog.records[-1]
    assert f"ended with status {status};" in ended.message
    assert ended.levelname == ("INFO" if status == 0 else "WARNING")
    assert mark.exists() == is_shut_down
    log = capfd.readouterr().err
    assert log.startswith("a word from the driver\n")
    assert said in log


WELL = NodeSample(1.0, 2)
NO_DRIVER = NodeSample(1.0, 0, error="the driver is not loaded")
STUCK = StuckCall("nvmlDeviceGetPowerUsage", 1, 6.0, 1)
HANGS = NodeSample(1.0, 2, stuck_call=STUCK)
Says = NodeSample | bytes


class Fake(WorkerProcess):
    """Says *says*, and no more until it is ended with *status*; None: it cannot be ended."""

    def __init__(
        self, *says: Says, status: int | None = 0, ends_itself: bool = False, in_kernel: bool = True
    ) -> None:
        self.pid = 0
        self.status = status
        self.in_kernel = in_kernel
        self.asked = 0  # How often it was looked whether it still runs.
        self._left = list(says)
        self._ends_itself = ends_itself

    def read_lines(self, timeout_seconds: float, wake: int) -> list[bytes] | None:
        if self._left:
            line = self._left.pop(0)
            return [line if isinstance(line, bytes) else line.to_json()]
        if self._ends_itself:
            return None
        time.sleep(0.01)
        return []

    def end(self, seconds: float = 0.0) -> int | None:
        return self.status

    def is_running(self) -> bool:
        self.asked += 1
        return self.status is None

    def is_in_kernel(self, call: StuckCall) -> bool:
        return self.in_kernel


class Fakes:
    """Starts the *workers*, then such that do *how* and say *says*; *started* has all of them."""

    def __init__(self, *says: Says, workers: Sequence[Fake] = (), **how: Any) -> None:
        self.started: list[Fake] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self._workers, self._says, self._how = list(workers), says, how

    def __call__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        self.may_start.wait(30)
        worker = self._workers.pop(0) if self._workers else Fake(*self._says, **self._how)
        self.started.append(worker)
        return worker


def ignore(sample: NodeSample) -> None:
    """What nobody wants to know."""


@contextmanager
def running(
    launch: Callable[[Sequence[str], Mapping[str, str]], WorkerProcess],
    restart_seconds: float = 0.01,
    on_sample: Callable[[NodeSample], None] = ignore,
    timing: Timing = PATIENT,
) -> Iterator[NvmlSupervisor]:
    supervisor = NvmlSupervisor(timing, None, restart_seconds, launch, on_sample)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


def test_hang_gets_a_new_worker_once() -> None:
    """If that hangs too, it continues for a while: it still reads the other GPUs."""
    later = replace(HANGS, timestamp_seconds=2.0)
    with running(Fakes(HANGS, later, in_kernel=False), restart_seconds=60.0) as supervisor:
        wait_until(lambda: supervisor.latest() == later)

        assert supervisor.worker_restarts == 1


def test_silent_worker_is_replaced_and_its_last_sample_is_not_served() -> None:
    """A frozen process loses its series before they go stale."""
    workers = Fakes(WELL)
    with running(workers, timing=QUICK) as supervisor:
        wait_until(lambda: supervisor.latest() is not None)
        workers.may_start.clear()
        wait_until(lambda: supervisor.latest() is None)
        assert not supervisor.worker_up
        workers.may_start.set()
        wait_until(lambda: supervisor.worker_up)


def test_release_begins_at_once_and_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Between two workers no GPU is open, and that is exposed without waiting for the next one.

    Nobody has to remember to take the GPUs back, and the exporter's end does not wait.
    """
    caplog.set_level(logging.INFO)
    fails = Fake(status=1, ends_itself=True)
    with running(Fakes(WELL, workers=[fails]), restart_seconds=60.0) as supervisor:
        wait_until(lambda: "it is replaced" in caplog.text)
        supervisor.release(0.2)
        wait_until(lambda: "the GPUs are no longer released" in caplog.text)
        wait_until(lambda: supervisor.worker_up)

        assert not supervisor.released
        supervisor.release(3600)
        wait_until(lambda: supervisor.released)
    assert not supervisor.released


def test_call_that_polls_the_driver_is_left_alone_for_a_while() -> None:
    """No signal would end it there; in the library it would never end."""
    here: Any = SimpleNamespace(pid=os.getpid())
    calls = [StuckCall("nvmlInit", None, at, threading.get_native_id()) for at in (6.0, 121.0)]
    assert [WorkerProcess.is_in_kernel(here, each) for each in calls] == [True, False]


def test_worker_that_cannot_be_killed_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While it sleeps in the driver its call is stuck, its files are open, and no other starts.

    The exporter's end does not wait for it.
    """
    monkeypatch.setattr(supervisor_module, "ABANDONED_POLL_SECONDS", 0.01)
    workers = Fakes(HANGS, status=None, ends_itself=True)

    def looks(number: int) -> None:
        before = workers.started[0].asked
        wait_until(lambda: workers.started[0].asked > before + number)

    with running(workers) as supervisor:
        wait_until(lambda: "cannot be killed" in caplog.text)
        first = supervisor.stuck_call
        supervisor.release(600)
        looks(20)
        later = supervisor.stuck_call
        assert first is not None
        assert later is not None
        assert later.seconds > first.seconds >= 6.0
        assert (later.function, later.gpu) == ("nvmlDeviceGetPowerUsage", 1)
        assert (len(workers.started), supervisor.released) == (1, False)

        workers.started[0].status = 0
        wait_until(lambda: supervisor.released)
        assert supervisor.stuck_call is None
        supervisor.resume()
        wait_until(lambda: len(workers.started) == 2)


FOREIGN = b'{"gpus":[],"stuck_call":null,"a_field_of_next_year":1}'
FAILS_TO_START = mock.Mock(side_effect=OSError("no more processes"))
FAILS_TO_SEE = mock.Mock(side_effect=ZeroDivisionError("odd sample"))


@pytest.mark.parametrize(
    ("launch", "on_sample", "said", "served"),
    [
        # Of another version.
        (Fakes(FOREIGN), ignore, "after an upgrade without a restart of the exporter", None),
        (FAILS_TO_START, ignore, "cannot be started: no more processes", None),
        # A worker that was well long enough is replaced as quickly as the first one.
        (Fakes(WELL, status=1, ends_itself=True), ignore, "ended with status 1", WELL),
        (Fakes(NO_DRIVER, WELL, ends_itself=True), ignore, "the driver is back", WELL),
        # Nobody expects such an error, and without its thread no GPU would be read again.
        (Fakes(WELL), FAILS_TO_SEE, "NVML worker cannot be followed", WELL),
    ],
    ids=["foreign", "not started", "ends", "finds GPUs", "error of the exporter's own"],
)
def test_worker_that_fails_is_replaced_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    launch: Callable[[Sequence[str], Mapping[str, str]], WorkerProcess],
    on_sample: Callable[[NodeSample], None],
    said: str,
    served: NodeSample | None,
) -> None:
    """The log says what to do."""
    monkeypatch.setattr(supervisor_module, "WELL_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    # Were the wait still doubled, the twentieth restart would come after three hours.
    restarts = 20 if "status" in said else 2
    with running(launch, on_sample=on_sample) as supervisor:
        wait_until(lambda: supervisor.worker_restarts >= restarts)

    assert said in caplog.text
    assert supervisor.latest() == served
