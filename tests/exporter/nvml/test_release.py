"""The GPUs can be released for a reset, and a hang is exposed even after the worker's silence."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.nvml import supervisor as supervisor_module
from exporter.nvml.process import SUPERSEDED_STATUS, WorkerProcess
from exporter.nvml.sample import NodeSample, NoGpuReason, StuckCall
from exporter.nvml.supervisor import NvmlSupervisor
from tests import nvmlstub
from tests.exporter.nvml.stub import PATIENT, Scenario, supervised, ups, wait_for
from tests.exporter.tried_again import tried_again


@contextmanager
def running(
    launch: Callable[[Sequence[str], Mapping[str, str]], WorkerProcess],
    restart_seconds: float = 0.01,
) -> Iterator[NvmlSupervisor]:
    """Run a supervisor of workers that are no processes."""
    supervisor = NvmlSupervisor(PATIENT, restart_seconds=restart_seconds, launch=launch)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


class Fake(WorkerProcess):
    """Says *says*, and no more until it is ended with *status*; None: it cannot be ended."""

    says: tuple[NodeSample, ...] = ()
    status: int | None = 0
    ends_itself = False

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.pid = 0
        self._left = list(self.says)

    def read_lines(self, timeout_seconds: float, wake: int) -> list[bytes] | None:
        if self._left:
            return [self._left.pop(0).to_json()]
        if self.ends_itself:
            return None
        time.sleep(0.01)
        return []

    def end(self, seconds: float = 0.0) -> int | None:
        return self.status

    def is_running(self) -> bool:
        return self.status is None

    def sleeps_in_kernel(self, thread_id: int) -> bool:
        return True


def has_open(path: Path) -> bool:
    """Whether any process has the file *path* open."""
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if file.readlink() == path:
                return True
        except OSError:
            continue  # It has ended meanwhile.
    return False


def test_node_without_driver_can_be_released(tmp_path: Path) -> None:
    """Where there is nothing to let go of, letting go works too."""
    with supervised(PATIENT, {"LD_LIBRARY_PATH": str(tmp_path)}) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        supervisor.release(600)
        wait_for(lambda: supervisor.released)

        assert supervisor.latest() is None


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


def test_release_ends_by_itself() -> None:
    """Nobody has to remember to take the GPUs back."""

    class Well(Fake):
        says = (NodeSample(1.0, 2),)

    with running(Well) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        supervisor.release(2.0)
        wait_for(lambda: supervisor.released)
        wait_for(lambda: supervisor.worker_up)

        assert not supervisor.released


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


def test_release_does_not_wait_for_the_back_off(caplog: pytest.LogCaptureFixture) -> None:
    """Between two workers no GPU is open, and that is exposed at once."""

    class Ends(Fake):
        status = 1
        ends_itself = True

    with running(Ends, restart_seconds=60.0) as supervisor:
        wait_for(lambda: "it is replaced" in caplog.text)
        supervisor.release(600)
        wait_for(lambda: supervisor.released, seconds=5.0)


def test_worker_that_cannot_be_killed_is_no_release() -> None:
    """While a process sleeps in the driver its files are open, and count as open."""

    class Stays(Fake):
        says = (NodeSample(1.0, 2),)
        status = None

    with running(Stays) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        supervisor.release(600)
        wait_for(lambda: supervisor.worker_pid is None)
        time.sleep(0.1)

        assert not supervisor.released


def test_stop_ends_a_release(tmp_path: Path) -> None:
    """The exporter ends at once though the GPUs are released for an hour."""
    with running(Fake) as supervisor:
        supervisor.release(3600)
        wait_for(lambda: supervisor.released)
        begun = time.monotonic()

    assert time.monotonic() - begun < 5
    assert not supervisor.released


HANGS = StuckCall("nvmlDeviceGetPowerUsage", 1, 6.0, 1)


@pytest.mark.parametrize("status", [0, None], ids=["silent", "asleep in the driver"])
def test_stuck_call_goes_on_growing_when_the_worker_is_silent(status: int | None) -> None:
    """A hanging call is exposed for as long as its process exists, silent or not."""

    class Silent(Fake):
        says = (NodeSample(1.0, 2, stuck_call=HANGS),)
        ends_itself = status is None

    Silent.status = status
    with running(Silent) as supervisor:
        wait_for(lambda: supervisor.stuck_call is not None)
        first = supervisor.stuck_call
        wait_for(lambda: (supervisor.stuck_call or HANGS).seconds > 6.2)
        later = supervisor.stuck_call
        wait_for(lambda: (supervisor.worker_pid is None) == (status is None))

    assert first is not None
    assert later is not None
    assert (later.function, later.gpu) == ("nvmlDeviceGetPowerUsage", 1)
    assert later.seconds > first.seconds >= 6.0


def test_stuck_call_is_over_with_its_process() -> None:
    """Once the hanging process is gone, or reports that all is well, no call is stuck."""

    class Recovers(Fake):
        says = (NodeSample(1.0, 2, stuck_call=HANGS), NodeSample(2.0, 2))

    class Ends(Fake):
        says = (NodeSample(1.0, 2, stuck_call=HANGS),)
        ends_itself = True

    with running(Recovers) as supervisor:
        wait_for(lambda: getattr(supervisor.latest(), "timestamp_seconds", 0) == 2.0)
        wait_for(lambda: supervisor.stuck_call is None)
    with running(Ends, restart_seconds=60.0) as supervisor:
        wait_for(lambda: supervisor.latest() is not None and supervisor.worker_pid is None)
        wait_for(lambda: supervisor.stuck_call is None)


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


MISMATCH = NodeSample(1.0, 0, error_reason=NoGpuReason.VERSION_MISMATCH, error="it does not fit")


def test_reason_is_logged_once_however_many_workers_find_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mismatch needs a new process a minute: no restart is counted, and the log has one line."""
    caplog.set_level(logging.INFO)
    told: list[NodeSample] = [MISMATCH] * 5 + [NodeSample(2.0, 8)]

    class MakesWay(Fake):
        status = SUPERSEDED_STATUS

        def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
            super().__init__(arguments, environment)
            self.ends_itself = len(told) > 1
            self._left = [NodeSample(1.0, None), told.pop(0)]

    with running(MakesWay) as supervisor:
        wait_for(lambda: getattr(supervisor.latest(), "gpus_visible", 0) == 8)
        assert supervisor.worker_restarts == 0

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "it does not fit"),
        ("INFO", "the driver is back and lists 8 GPUs"),
    ]


def test_node_without_gpu_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A node that has no NVIDIA library is a normal node."""
    caplog.set_level(logging.INFO)

    class NoLibrary(Fake):
        says = (NodeSample(1.0, 0, error_reason=NoGpuReason.NO_LIBRARY, error="no library"),) * 3

    with running(NoLibrary) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        time.sleep(0.1)

    assert [record.levelname for record in caplog.records] == ["INFO"]
