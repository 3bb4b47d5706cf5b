"""How a worker is supervised: what its GPUs and its process do wrong hides nobody."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.nvml import supervisor as supervisor_module
from exporter.nvml.process import PACKAGE_ROOT, SUPERSEDED_STATUS, WorkerProcess
from exporter.nvml.sample import NodeSample, NoGpuReason, StuckCall
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from tests import nvmlstub
from tests.exporter.nvml.stub import (
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


def test_hang_while_nvml_opens_is_mended(supervise: Supervise, scenario: Scenario) -> None:
    """Nothing is known of the node while nvmlInit hangs; then a new worker finds its GPUs."""
    scenario.play("nvmlInitWithFlags * hang")
    supervisor = supervise(QUICK)
    stuck = wait_for_sample(supervisor, lambda sample: sample.stuck_call is not None)
    assert stuck.gpus_visible is None

    scenario.play()
    wait_until(lambda: ups(supervisor) == [True, True])


def test_slow_pcie_readings_delay_no_sample(supervise: Supervise, scenario: Scenario) -> None:
    """Eight GPUs whose PCIe readings block for five intervals are sampled all the while."""
    scenario.play(*ONLY_SAMPLED_PCIE)
    supervisor = supervise(PATIENT, gpus=8, pcie_milliseconds=500)
    timestamps = set()

    def has_pcie() -> bool:
        sample = supervisor.latest()
        if sample is None or not all(gpu.up for gpu in sample.gpus):
            return False
        timestamps.add(sample.timestamp_seconds)
        return any(gpu.pcie_receive_bytes_per_second is not None for gpu in sample.gpus)

    wait_until(has_pcie)
    # The first reading takes 1 s for its two directions, in which 10 samples are due.
    assert len(timestamps) > 3


def test_sleep_in_the_kernel_is_left_alone(
    supervise: Supervise, scenario: Scenario, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that no signal can end is not worth the worker that still reads the other GPUs."""
    supervisor = supervise(replace(QUICK, stale_seconds=1.5))
    wait_until(lambda: ups(supervisor) == [True, True])

    scenario.play("nvmlDeviceGetPowerUsage 1 hang-in-D")
    wait_until(lambda: "only the driver can end it" in caplog.text)
    wait_until(lambda: ups(supervisor) == [True, False])

    assert supervisor.worker_restarts == 0
    assert supervisor.worker_up


def has_open(pid: int, path: Path) -> bool:
    """Whether the process has the file *path* open."""
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            if file.readlink() == path:
                return True
        except OSError:
            continue  # It was closed meanwhile.
    return False


def test_released_gpus_are_open_in_no_process(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it is asked no process has the device files, and no sample is served.

    A worker leaves the driver in good order; one that is silent is ended at once, and not when the
    patience with it is over.
    """
    # However busy this machine is, the worker has the time to shut NVML down.
    monkeypatch.setattr(supervisor_module, "LET_GO_SECONDS", 20.0)
    device, mark = tmp_path / "nvidia0", tmp_path / "shut-down"
    device.touch()
    stub = {"STUB_DEVICE": str(device), "STUB_SHUTDOWN_MARK": str(mark)}
    supervisor = supervise(PATIENT, silent_seconds=600.0, **stub)
    wait_until(lambda: ups(supervisor) == [True, True])
    worker = supervisor.worker_pid
    assert worker is not None
    assert has_open(worker, device)

    supervisor.release(600)
    wait_until(lambda: supervisor.released)
    assert mark.exists()
    assert not Path(f"/proc/{worker}").exists()
    assert not has_open(os.getpid(), device)
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


def test_exporter_ends_while_a_call_hangs(library: Path, scenario: Scenario) -> None:
    """SIGTERM is not held up by a GPU that hangs, and the worker is gone after it."""
    environment = nvmlstub.environment(library, scenario=scenario.path)
    with supervised(PATIENT, environment, silent_seconds=600.0) as supervisor:
        wait_until(lambda: ups(supervisor) == [True, True])
        pid = supervisor.worker_pid
        scenario.play("nvmlDeviceGetPowerUsage 1 hang")
        # Each sample is read before the next one begins: the second from now has met the hang.
        for _ in range(2):
            last = supervisor.latest()
            wait_until(lambda: supervisor.latest() != last)  # noqa: B023 # it is called at once

    assert not Path(f"/proc/{pid}").exists()
    assert not supervisor.worker_up


def test_driver_newer_than_the_library_in_use_gets_a_new_process(
    supervise: Supervise, scenario: Scenario
) -> None:
    """A driver that comes after its library was loaded and does not fit it costs no minute."""
    scenario.play("nvmlInitWithFlags * 9")
    supervisor = supervise(PATIENT)
    before = wait_for_sample(supervisor, lambda sample: sample.gpus_visible == 0)
    scenario.play("nvmlInitWithFlags * 18")
    after = wait_for_sample(
        supervisor, lambda sample: sample.error_reason == NoGpuReason.VERSION_MISMATCH
    )

    assert before.error_reason == NoGpuReason.DRIVER_NOT_LOADED
    assert before.worker_pid != after.worker_pid
    assert supervisor.worker_restarts == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        # A library that no longer fits the driver cannot be unloaded.
        ("nvmlDeviceGetPowerUsage * 9", "nvmlDeviceGetPowerUsage on GPU 0 returned 9: "),
        ("nvmlDeviceGetTemperature 1 crash", "in nvmlDeviceGetTemperature"),
    ],
    ids=["reloaded", "crash"],
)
def test_worker_that_cannot_go_on_names_the_call(
    supervise: Supervise,
    scenario: Scenario,
    capfd: pytest.CaptureFixture[str],
    answer: str,
    said: str,
) -> None:
    """In the log, whether the driver was reloaded under it or its library crashed."""
    scenario.play(answer)
    supervisor = supervise(PATIENT, restart_seconds=60.0)
    log = ""

    def ended() -> bool:
        nonlocal log
        log += capfd.readouterr().err
        return said in log

    wait_until(ended)
    wait_until(lambda: not supervisor.worker_up)


# However busy this machine is, it has the time to shut NVML down.
PATIENTLY = "from exporter.nvml.worker import __main__ as w; w.CLOSE_SECONDS = 60; w.main()"


@contextmanager
def worker(
    library: Path, scenario: Scenario, *how: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker without a supervisor, once its two GPUs answer."""
    environment = nvmlstub.environment(library, scenario=scenario.path)
    process = subprocess.Popen(
        [sys.executable, *how, *QUICK.to_arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PACKAGE_ROOT,
        env=os.environ | environment | variables,
        # A test run in the background has SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            while [gpu.up for gpu in next_sample(process).gpus] != [True, True]:
                continue
            yield process
        finally:
            process.kill()


def next_sample(process: subprocess.Popen[bytes]) -> NodeSample:
    assert process.stdout is not None
    return NodeSample.from_json(process.stdout.readline())


def test_worker_leaves_the_driver_in_good_order(
    library: Path, scenario: Scenario, tmp_path: Path
) -> None:
    """On SIGTERM; Ctrl-C in a terminal reaches it too, and is left to its parent.

    What the driver prints on standard output is no sample, and goes into the log.
    """
    mark = tmp_path / "shut-down"
    stub = {"STUB_SHUTDOWN_MARK": str(mark), "STUB_CHATTER": "1"}
    with worker(library, scenario, "-c", PATIENTLY, **stub) as process:
        process.send_signal(signal.SIGINT)
        assert all(next_sample(process) for _ in range(3))
        process.terminate()

        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b"a word from the driver\n"
    assert mark.exists()


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlShutdown"])
def test_hung_driver_does_not_keep_the_worker(
    library: Path, scenario: Scenario, function: str
) -> None:
    """The worker ends on SIGTERM though a call, even nvmlShutdown, never returns."""
    with worker(library, scenario, "-m", "exporter.nvml.worker") as process:
        scenario.play(f"{function} * hang")
        next_sample(process)
        process.terminate()

        assert process.wait(20) in (0, -signal.SIGALRM)


WELL = NodeSample(1.0, 2)
STUCK = StuckCall("nvmlDeviceGetPowerUsage", 1, 6.0, 1)
HANGS = NodeSample(1.0, 2, stuck_call=STUCK)


Launch = Callable[[Sequence[str], Mapping[str, str]], WorkerProcess]


@contextmanager
def running(
    launch: Launch,
    restart_seconds: float = 0.01,
    on_sample: Callable[[NodeSample], None] = lambda sample: None,
    timing: Timing = PATIENT,
) -> Iterator[NvmlSupervisor]:
    supervisor = NvmlSupervisor(timing, None, restart_seconds, launch, on_sample)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


class Fake(WorkerProcess):
    """Says *says*, and no more until it is ended with *status*; None: it cannot be ended."""

    def __init__(
        self,
        *says: NodeSample | bytes,
        status: int | None = 0,
        ends_itself: bool = False,
        in_kernel: bool = True,
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

    def sleeps_in_kernel(self, thread_id: int) -> bool:
        return self.in_kernel


def fake(*says: NodeSample | bytes, **how: Any) -> Launch:
    """Start such a worker each time."""
    return lambda arguments, environment: Fake(*says, **how)


def test_hang_gets_a_new_worker_once() -> None:
    """If that hangs too, it continues for a while: it still reads the other GPUs."""
    later = replace(HANGS, timestamp_seconds=2.0)
    with running(fake(HANGS, later, in_kernel=False), restart_seconds=60.0) as supervisor:
        wait_until(lambda: supervisor.latest() == later)

        assert supervisor.worker_restarts == 1


def test_silent_worker_is_replaced_and_its_last_sample_is_not_served() -> None:
    """A frozen process loses its series before they go stale."""
    workers, may_start = iter([Fake(WELL), Fake(WELL)]), threading.Semaphore(1)

    def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        may_start.acquire()
        return next(workers)

    with running(launch, timing=QUICK) as supervisor:
        wait_until(lambda: supervisor.latest() is not None)
        wait_until(lambda: supervisor.latest() is None)
        assert not supervisor.worker_up
        may_start.release()
        wait_until(lambda: supervisor.worker_up)
        may_start.release()


def test_release_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has to remember to take the GPUs back, and the exporter's end does not wait."""
    caplog.set_level(logging.INFO)
    with running(fake(WELL)) as supervisor:
        wait_until(lambda: supervisor.worker_up)
        supervisor.release(0.2)
        wait_until(lambda: "the GPUs are no longer released" in caplog.text)
        wait_until(lambda: supervisor.worker_up)

        assert not supervisor.released
        supervisor.release(3600)
        wait_until(lambda: supervisor.released)
    assert not supervisor.released


def test_worker_ended_from_outside_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    """systemd ends all processes of a service at once: that is replaced, and no warning."""
    caplog.set_level(logging.INFO)
    with running(fake(WELL, ends_itself=True), restart_seconds=60.0):
        wait_until(lambda: bool(caplog.records))

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "NVML worker ended with status 0; it is replaced")
    ]


def test_error_of_the_exporters_own_costs_one_worker(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody expected it, and without its thread no GPU would be read again."""
    started: list[Fake] = []
    seen: list[NodeSample] = []

    def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        started.append(Fake(WELL))
        return started[-1]

    def see(sample: NodeSample) -> None:
        seen.append(sample)
        if len(seen) == 1:
            raise ZeroDivisionError("odd sample")

    with running(launch, on_sample=see):
        wait_until(lambda: len(seen) == 2)

    assert len(started) == 2
    assert caplog.messages == [
        "nvml-supervisor failed, and goes on: ZeroDivisionError: odd sample",
        "NVML worker cannot be followed; it is replaced",
    ]


def test_release_does_not_wait_for_the_back_off(caplog: pytest.LogCaptureFixture) -> None:
    """Between two workers no GPU is open, and that is exposed at once."""
    with running(fake(status=1, ends_itself=True), restart_seconds=60.0) as supervisor:
        wait_until(lambda: "it is replaced" in caplog.text)
        supervisor.release(600)
        wait_until(lambda: supervisor.released)


def test_worker_that_cannot_be_killed_is_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process sleeps in the driver its files are open, and count as open."""
    monkeypatch.setattr(supervisor_module, "ABANDONED_POLL_SECONDS", 0.01)
    worker = Fake(WELL, status=None)
    with running(lambda arguments, environment: worker) as supervisor:
        wait_until(lambda: supervisor.worker_up)
        supervisor.release(600)
        wait_until(lambda: worker.asked > 3)

        assert not supervisor.released


@pytest.mark.parametrize("status", [0, None], ids=["silent", "asleep in the driver"])
def test_stuck_call_goes_on_growing_when_the_worker_is_silent(status: int | None) -> None:
    """A hanging call is exposed for as long as its process exists, silent or not."""
    with running(fake(HANGS, status=status, ends_itself=status is None)) as supervisor:
        wait_until(lambda: supervisor.stuck_call is not None)
        first = supervisor.stuck_call
        wait_until(lambda: (supervisor.stuck_call or STUCK).seconds > 6.2)
        later = supervisor.stuck_call
        wait_until(lambda: (supervisor.worker_pid is None) == (status is None))

    assert first is not None
    assert later is not None
    assert (later.function, later.gpu) == ("nvmlDeviceGetPowerUsage", 1)
    assert later.seconds > first.seconds >= 6.0


def test_stuck_call_is_over_with_its_process() -> None:
    """Once the hanging process is gone, or reports that all is well, no call is stuck."""
    with running(fake(HANGS, NodeSample(2.0, 2))) as supervisor:
        wait_until(lambda: getattr(supervisor.latest(), "timestamp_seconds", 0) == 2.0)
        wait_until(lambda: supervisor.stuck_call is None)
    with running(fake(HANGS, ends_itself=True), restart_seconds=60.0) as supervisor:
        wait_until(lambda: supervisor.latest() is not None and supervisor.worker_pid is None)
        wait_until(lambda: supervisor.stuck_call is None)


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
        wait_until(lambda: "cannot be killed" in caplog.text and started[0].asked > 20)
        assert len(started) == 1
        started[0].status = 0
        wait_until(lambda: len(started) >= 2)


def test_line_of_another_version_is_a_failure_not_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    """After an upgrade under a running exporter the log says what to do, again and again."""
    foreign = b'{"gpus":[],"stuck_call":null,"a_field_of_next_year":1}'
    with running(fake(foreign)) as supervisor:
        wait_until(lambda: supervisor.worker_restarts >= 2)

    assert "for example after an upgrade without a restart of the exporter" in caplog.text
    assert supervisor.latest() is None


def fails_to_start(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
    raise OSError("no more processes")


def test_machine_that_cannot_start_a_process_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even a full process table ends the supervision."""
    with running(fails_to_start) as supervisor:
        wait_until(lambda: supervisor.worker_restarts >= 2)

    assert "cannot be started: no more processes" in caplog.text
    assert not supervisor.worker_up


def test_failures_long_past_do_not_make_the_next_restart_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that was well long enough is replaced as quickly as the first one."""
    monkeypatch.setattr(supervisor_module, "WELL_SECONDS", 0.0)
    with running(fake(WELL, status=1, ends_itself=True)) as supervisor:
        # Were the wait still doubled, the twentieth restart would come after three hours.
        wait_until(lambda: supervisor.worker_restarts >= 20)


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
        wait_until(lambda: getattr(supervisor.latest(), "gpus_visible", 0) == 8)
        assert supervisor.worker_restarts == 0

    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "it does not fit"),
        ("INFO", "the driver is back and lists 8 GPUs"),
    ]


def test_node_without_gpu_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A node that has no NVIDIA library is a normal node."""
    caplog.set_level(logging.INFO)
    why: Any = {"error_reason": NoGpuReason.NO_LIBRARY, "error": "no library"}
    says = [NodeSample(seconds, 0, **why) for seconds in (1.0, 2.0, 3.0)]
    with running(fake(*says)) as supervisor:
        wait_until(lambda: supervisor.latest() == says[-1])

    assert [record.levelname for record in caplog.records] == ["INFO"]
