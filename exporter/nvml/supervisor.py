"""Keeps one NVML worker running, and holds its newest sample for the collectors."""

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.errors import Failures
from exporter.nvml.backoff import Backoff
from exporter.nvml.process import END_SECONDS, SUPERSEDED_STATUS, WorkerProcess
from exporter.nvml.sample import NodeSample, NoGpuReason, StuckCall
from exporter.nvml.timing import Timing

logger = logging.getLogger(__name__)

# Imports alone can take this long on a busy node with packages on a network file system.
FIRST_LINE_SECONDS: Final = 30.0
RESTART_CAP_SECONDS: Final = 60.0
# After a worker has run without a fault for this long, the back-off starts over: one that crashes
# in a loop does so sooner, and one that is killed now and then must be back in seconds.
WELL_SECONDS: Final = 10.0
# How long a healthy worker may take to shut NVML down before it is killed: longer than its own
# limit.
LET_GO_SECONDS: Final = 2.5
# How often to check on a worker that SIGKILL did not end.
ABANDONED_POLL_SECONDS: Final = 1.0

FOREIGN: Final = "for example after an upgrade without a restart of the exporter"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a worker must be replaced; *at_once*: without another wait.

    *planned*: the worker asked for it, so it does not count as a restart.
    """

    reason: str
    at_once: bool = False
    planned: bool = False
    log_level: int = logging.WARNING


ENDED: Final = _Failure("ended")
LOST: Final = _Failure("cannot be followed")


class NvmlSupervisor:
    """Runs the worker from its own thread; the other methods only read memory.

    A worker that ends, falls silent, or reports a stuck call is replaced, after a wait that doubles
    each time. While a call is stuck, the old worker continues during that wait, because its other
    GPUs are fine. A worker that not even SIGKILL ends, because it sleeps in the driver, is left
    behind: a new one would only hang as well, so none starts until the old one is gone.

    release() ends the worker for a while, which closes the driver's device files.

    *environment* is added to our own. *on_sample* is called with each sample, in that thread.
    """

    def __init__(
        self,
        timing: Timing | None = None,
        environment: Mapping[str, str] | None = None,
        restart_seconds: float = 1.0,
        launch: Callable[[Sequence[str], Mapping[str, str]], WorkerProcess] = WorkerProcess,
        on_sample: Callable[[NodeSample], None] = lambda sample: None,
        failures: Failures | None = None,
    ) -> None:
        self._failures = Failures() if failures is None else failures
        self._timing = timing or Timing()
        self._environment = {**os.environ, **(environment or {})}
        self._backoff = Backoff(restart_seconds, RESTART_CAP_SECONDS)
        self._launch = launch
        self._on_sample = on_sample
        self._worker: WorkerProcess | None = None
        # Replaced as a whole, so a reader never combines one sample with the time of another.
        self._heard: tuple[NodeSample, float] | None = None
        # Kept until the process that made it is gone, even if it stays silent.
        self._stuck: tuple[StuckCall, float] | None = None
        self._restarts = 0
        self._replace_not_before = 0.0
        self._logged_stuck: tuple[str, int | None] | None = None
        self._logged_error = ""
        self._released_until = 0.0
        self._released = False
        self._stopping = threading.Event()
        # Readable after release() and resume(), and once stop() has closed the other end.
        self._wake, self._to_wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name="nvml-supervisor", daemon=True)

    def start(self) -> None:
        """Start the worker, and start it again whenever it fails."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker; return within seconds even if it hangs. Call it once, after start()."""
        self._stopping.set()
        os.close(self._to_wake)
        self._thread.join()
        os.close(self._wake)

    def release(self, seconds: float) -> None:
        """End the worker, and start none for *seconds*; returns before the worker has ended.

        Call it, like resume(), from the thread that calls stop(), between start() and stop().
        """
        self._released_until = time.monotonic() + seconds
        os.write(self._to_wake, b"!")

    def resume(self) -> None:
        """Read the GPUs again, even if a release has not run out."""
        self._released_until = 0.0
        os.write(self._to_wake, b"!")

    @property
    def released(self) -> bool:
        """Whether the GPUs are released: no process of ours has the driver open."""
        return self._released

    def latest(self) -> NodeSample | None:
        """Return the newest sample, None if there is no fresh one."""
        heard = self._heard
        if heard is None or time.monotonic() - heard[1] > self._timing.patience_seconds:
            return None
        return heard[0]

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, None if none is running."""
        worker = self._worker
        return None if worker is None else worker.pid

    @property
    def worker_up(self) -> bool:
        """Whether a worker is running and has reported recently."""
        return self._worker is not None and self.latest() is not None

    @property
    def worker_restarts(self) -> int:
        """How many workers were started to replace a failed one."""
        return self._restarts

    @property
    def stuck_call(self) -> StuckCall | None:
        """The driver call that hangs, as of now, even if the worker has fallen silent."""
        stuck = self._stuck
        if stuck is None:
            return None
        call, heard = stuck
        return replace(call, seconds=call.seconds + time.monotonic() - heard)

    def _run(self) -> None:
        failure: _Failure | None = None
        while not self._stopping.is_set():
            if self._seconds_released() > 0:
                self._stay_away()
                failure = None
                continue
            self._restarts += failure is not None and not failure.planned
            try:
                failure = self._run_worker()
            except Exception as error:  # noqa: BLE001 - without this thread no GPU is read
                failure = _Failure(f"cannot be started: {error}")
            if failure is not None:
                self._back_off(failure)

    def _seconds_released(self) -> float:
        return self._released_until - time.monotonic()

    def _stay_away(self) -> None:
        seconds = self._seconds_released()
        logger.info("GPUs released for %.0f s: the driver's files are closed", seconds)
        self._heard = None
        self._released = True
        while not self._stopping.is_set() and self._seconds_released() > 0:
            self._wait(self._seconds_released())
        self._released = False
        self._backoff.reset()  # The operator has intervened, so earlier failures no longer count.
        logger.info("the GPUs are no longer released")

    def _wait(self, seconds: float) -> None:
        """Wait until woken or for *seconds*."""
        select.select([self._wake], (), (), max(0.0, seconds))
        self._forget_wake()

    def _forget_wake(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            return  # Timed out.

    def _run_worker(self) -> _Failure | None:
        """Start a worker and return why it must be replaced; None if it was only asked to end."""
        worker = self._launch(self._timing.to_arguments(), self._environment)
        self._worker = worker
        failure: _Failure | None = LOST
        with self._failures.caught("nvml-supervisor"):
            failure = self._follow(worker)
        self._worker = None
        status = worker.end(LET_GO_SECONDS if failure is None else END_SECONDS)
        if status is None:
            logger.error(
                "NVML worker %d cannot be killed: no new one starts until it is gone", worker.pid
            )
            while worker.is_running() and not self._stopping.wait(ABANDONED_POLL_SECONDS):
                continue
        self._stuck = None
        return _ended(status) if failure == ENDED and status is not None else failure

    def _follow(self, worker: WorkerProcess) -> _Failure | None:
        quiet_until = time.monotonic() + max(FIRST_LINE_SECONDS, self._timing.patience_seconds)
        while time.monotonic() < quiet_until:
            lines = worker.read_lines(quiet_until - time.monotonic(), self._wake)
            self._forget_wake()
            if self._stopping.is_set() or self._seconds_released() > 0:
                return None
            if lines is None:
                return ENDED
            for line in lines:
                try:
                    stuck = self._take(line).stuck_call
                except (ValueError, TypeError, KeyError) as error:
                    return _Failure(
                        f"wrote data that this exporter cannot read, {FOREIGN}: {error!r}"
                    )
                quiet_until = time.monotonic() + self._timing.patience_seconds
                if stuck is not None and self._may_replace(worker, stuck):
                    return _Failure("is stuck", at_once=True)
        return _Failure("has not reported for too long")

    def _take(self, line: bytes) -> NodeSample:
        sample = NodeSample.from_json(line)
        now = time.monotonic()
        self._heard = (sample, now)
        self._stuck = None if sample.stuck_call is None else (sample.stuck_call, now)
        self._log_error(sample)
        self._on_sample(sample)
        if sample.stuck_call is None:
            self._logged_stuck = None
            if time.monotonic() > self._replace_not_before + WELL_SECONDS:
                self._backoff.reset()
        return sample

    def _log_error(self, sample: NodeSample) -> None:
        """Log once why there is no GPU, although every new worker finds the same reason."""
        if sample.gpus_visible is None or sample.error == self._logged_error:
            return
        self._logged_error = sample.error
        if sample.error:
            level = (
                logging.INFO if sample.error_reason == NoGpuReason.NO_LIBRARY else logging.WARNING
            )
            logger.log(level, sample.error)
        else:
            logger.info("the driver is back and lists %d GPUs", sample.gpus_visible)

    def _may_replace(self, worker: WorkerProcess, stuck: StuckCall) -> bool:
        in_kernel = worker.is_in_kernel(stuck)
        if self._logged_stuck != (stuck.function, stuck.gpu):
            self._logged_stuck = (stuck.function, stuck.gpu)
            advice = "; it is in the kernel, so only the driver can end it" * in_kernel
            logger.warning("%s%s", stuck, advice)
        return not in_kernel and time.monotonic() >= self._replace_not_before

    def _back_off(self, failure: _Failure) -> None:
        seconds = self._backoff.next_seconds()
        self._replace_not_before = time.monotonic() + seconds
        logger.log(failure.log_level, "NVML worker %s; it is replaced", failure.reason)
        while not (failure.at_once or self._stopping.is_set() or self._seconds_released() > 0):
            left = self._replace_not_before - time.monotonic()
            if left <= 0:
                return
            self._wait(left)


def _ended(status: int) -> _Failure:
    if status == SUPERSEDED_STATUS:
        return _Failure("is stopped for a new one", planned=True, log_level=logging.DEBUG)
    # Status 0: it got SIGTERM, which systemd sends to all processes of a service.
    level = logging.INFO if status == 0 else logging.WARNING
    return _Failure(f"ended with status {status}", log_level=level)
