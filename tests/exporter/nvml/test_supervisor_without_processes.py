"""Supervision of workers that are no processes: failures, hangs, and the release of the GPUs."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from exporter.nvml import supervisor as supervisor_module
from exporter.nvml.process import SUPERSEDED_STATUS, WorkerProcess
from exporter.nvml.sample import NodeSample, NoGpuReason, StuckCall
from exporter.nvml.supervisor import NvmlSupervisor
from tests.exporter.nvml.stub import PATIENT, wait_for

WELL = NodeSample(1.0, 2)
STUCK = StuckCall("nvmlDeviceGetPowerUsage", 1, 6.0, 1)
HANGS = NodeSample(1.0, 2, stuck_call=STUCK)


@contextmanager
def running(
    launch: Callable[[Sequence[str], Mapping[str, str]], WorkerProcess],
    restart_seconds: float = 0.01,
) -> Iterator[NvmlSupervisor]:
    supervisor = NvmlSupervisor(PATIENT, restart_seconds=restart_seconds, launch=launch)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


class Fake(WorkerProcess):
    """Says *says*, and no more until it is ended with *status*; None: it cannot be ended."""

    def __init__(
        self, *says: NodeSample | bytes, status: int | None = 0, ends_itself: bool = False
    ) -> None:
        self.pid = 0
        self._left = list(says)
        self._status = status
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
        return self._status

    def is_running(self) -> bool:
        return self._status is None

    def sleeps_in_kernel(self, thread_id: int) -> bool:
        return True


def fake(
    *says: NodeSample | bytes, status: int | None = 0, ends_itself: bool = False
) -> Callable[[Sequence[str], Mapping[str, str]], WorkerProcess]:
    """Start such a worker each time."""
    return lambda arguments, environment: Fake(*says, status=status, ends_itself=ends_itself)


def test_release_ends_by_itself() -> None:
    """Nobody has to remember to take the GPUs back."""
    with running(fake(WELL)) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        supervisor.release(2.0)
        wait_for(lambda: supervisor.released)
        wait_for(lambda: supervisor.worker_up)

        assert not supervisor.released


def test_error_of_the_exporters_own_costs_one_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody expected it, and without its thread no GPU would be read again."""
    ended: list[Fake] = []
    seen: list[NodeSample] = []

    class Ends(Fake):
        def end(self, seconds: float = 0.0) -> int | None:
            ended.append(self)
            return super().end(seconds)

    def see(sample: NodeSample) -> None:
        seen.append(sample)
        if len(seen) == 1:
            raise ZeroDivisionError("odd sample")

    supervisor = NvmlSupervisor(
        PATIENT,
        restart_seconds=0.01,
        launch=lambda arguments, environment: Ends(WELL),
        on_sample=see,
    )
    supervisor.start()
    wait_for(lambda: len(seen) == 2)
    assert len(ended) == 1
    supervisor.stop()

    assert caplog.messages == [
        "nvml-supervisor failed, and goes on: ZeroDivisionError: odd sample",
        "NVML worker cannot be followed; it is replaced",
    ]


def test_release_does_not_wait_for_the_back_off(caplog: pytest.LogCaptureFixture) -> None:
    """Between two workers no GPU is open, and that is exposed at once."""
    with running(fake(status=1, ends_itself=True), restart_seconds=60.0) as supervisor:
        wait_for(lambda: "it is replaced" in caplog.text)
        supervisor.release(600)
        wait_for(lambda: supervisor.released, seconds=5.0)


def test_worker_that_cannot_be_killed_is_no_release() -> None:
    """While a process sleeps in the driver its files are open, and count as open."""
    with running(fake(WELL, status=None)) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        supervisor.release(600)
        wait_for(lambda: supervisor.worker_pid is None)
        time.sleep(0.1)

        assert not supervisor.released


def test_stop_ends_a_release() -> None:
    """The exporter ends at once though the GPUs are released for an hour."""
    with running(fake()) as supervisor:
        supervisor.release(3600)
        wait_for(lambda: supervisor.released)
        begun = time.monotonic()

    assert time.monotonic() - begun < 5
    assert not supervisor.released


@pytest.mark.parametrize("status", [0, None], ids=["silent", "asleep in the driver"])
def test_stuck_call_goes_on_growing_when_the_worker_is_silent(status: int | None) -> None:
    """A hanging call is exposed for as long as its process exists, silent or not."""
    with running(fake(HANGS, status=status, ends_itself=status is None)) as supervisor:
        wait_for(lambda: supervisor.stuck_call is not None)
        first = supervisor.stuck_call
        wait_for(lambda: (supervisor.stuck_call or STUCK).seconds > 6.2)
        later = supervisor.stuck_call
        wait_for(lambda: (supervisor.worker_pid is None) == (status is None))

    assert first is not None
    assert later is not None
    assert (later.function, later.gpu) == ("nvmlDeviceGetPowerUsage", 1)
    assert later.seconds > first.seconds >= 6.0


def test_stuck_call_is_over_with_its_process() -> None:
    """Once the hanging process is gone, or reports that all is well, no call is stuck."""
    with running(fake(HANGS, NodeSample(2.0, 2))) as supervisor:
        wait_for(lambda: getattr(supervisor.latest(), "timestamp_seconds", 0) == 2.0)
        wait_for(lambda: supervisor.stuck_call is None)
    with running(fake(HANGS, ends_itself=True), restart_seconds=60.0) as supervisor:
        wait_for(lambda: supervisor.latest() is not None and supervisor.worker_pid is None)
        wait_for(lambda: supervisor.stuck_call is None)


def test_worker_that_cannot_be_killed_is_not_joined_by_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is never more than one worker asleep in the driver, and stopping does not wait."""
    monkeypatch.setattr(supervisor_module, "ABANDONED_POLL_SECONDS", 0.01)
    started: list[Fake] = []

    def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        started.append(Fake(status=None, ends_itself=True))
        return started[-1]

    with running(launch):
        wait_for(lambda: "cannot be killed" in caplog.text)
        time.sleep(0.3)
        assert len(started) == 1
        started[0]._status = 0
        wait_for(lambda: len(started) >= 2)
        begun = time.monotonic()

    assert time.monotonic() - begun < 5


def test_line_of_another_version_is_a_failure_not_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    """After an upgrade under a running exporter the log says what to do, again and again."""
    foreign = b'{"gpus":[],"stuck_call":null,"a_field_of_next_year":1}'
    with running(fake(foreign)) as supervisor:
        wait_for(lambda: supervisor.worker_restarts >= 2)

    assert "for example after an upgrade without a restart of the exporter" in caplog.text
    assert supervisor.latest() is None


def fails_to_start(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
    raise OSError("no more processes")


def test_machine_that_cannot_start_a_process_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even a full process table ends the supervision."""
    with running(fails_to_start) as supervisor:
        wait_for(lambda: supervisor.worker_restarts >= 2)

    assert "cannot be started: no more processes" in caplog.text
    assert not supervisor.worker_up


def test_failures_long_past_do_not_make_the_next_restart_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that was well long enough is replaced as quickly as the first one."""
    monkeypatch.setattr(supervisor_module, "WELL_SECONDS", 0.0)
    with running(fake(WELL, status=1, ends_itself=True)) as supervisor:
        # Were the wait still doubled, the twentieth restart would come after three hours.
        wait_for(lambda: supervisor.worker_restarts >= 20)


def test_reason_is_logged_once_however_many_workers_find_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mismatch needs a new process a minute: no restart is counted, and the log has one line."""
    caplog.set_level(logging.INFO)
    reason = NoGpuReason.VERSION_MISMATCH
    mismatch = NodeSample(1.0, 0, error_reason=reason, error="it does not fit")
    told = [mismatch] * 5 + [NodeSample(2.0, 8)]

    def makes_way(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        is_last = len(told) == 1
        says = (NodeSample(1.0, None), told.pop(0))
        return Fake(*says, status=SUPERSEDED_STATUS, ends_itself=not is_last)

    with running(makes_way) as supervisor:
        wait_for(lambda: getattr(supervisor.latest(), "gpus_visible", 0) == 8)
        assert supervisor.worker_restarts == 0

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "it does not fit"),
        ("INFO", "the driver is back and lists 8 GPUs"),
    ]


def test_node_without_gpu_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A node that has no NVIDIA library is a normal node."""
    caplog.set_level(logging.INFO)
    normal = NodeSample(1.0, 0, error_reason=NoGpuReason.NO_LIBRARY, error="no library")
    with running(fake(*[normal] * 3)) as supervisor:
        wait_for(lambda: supervisor.worker_up)
        time.sleep(0.1)

    assert [record.levelname for record in caplog.records] == ["INFO"]
