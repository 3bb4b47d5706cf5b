"""Keeps one NVML worker running, and holds its newest sample for the collectors."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from exporter.nvml.backoff import Backoff
from exporter.nvml.process import WorkerProcess
from exporter.nvml.sample import NodeSample, StuckCall
from exporter.nvml.timing import Timing

logger = logging.getLogger(__name__)

# Imports alone can take this long on a busy node whose packages lie on a network file system.
FIRST_LINE_SECONDS: Final = 30.0
RESTART_CAP_SECONDS: Final = 60.0
# A worker that was well for this long starts the back-off anew.
WELL_SECONDS: Final = 60.0
# How often a worker that SIGKILL did not end is looked at.
ABANDONED_POLL_SECONDS: Final = 1.0

FOREIGN: Final = "as after an upgrade without a restart of the exporter"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a worker must be replaced; *at_once*: it has been waited for long enough already."""

    reason: str
    at_once: bool = False
    log_level: int = logging.WARNING


ENDED: Final = _Failure("ended")


class NvmlSupervisor:
    """Runs the worker from a thread of its own; the other methods only read memory.

    A worker that ends, says nothing, or reports a stuck call is replaced. The wait before that
    doubles each time; while a call is stuck the old worker goes on meanwhile, since its other GPUs
    are fine. A worker that even SIGKILL does not end, because it sleeps in the driver, is left
    behind: another would only join it, so none is started before it is gone.

    *environment* is added to our own.
    """

    def __init__(
        self,
        timing: Timing | None = None,
        environment: Mapping[str, str] | None = None,
        restart_seconds: float = 1.0,
        launch: Callable[[Sequence[str], Mapping[str, str]], WorkerProcess] = WorkerProcess,
    ) -> None:
        self._timing = timing or Timing()
        self._environment = {**os.environ, **(environment or {})}
        self._backoff = Backoff(restart_seconds, RESTART_CAP_SECONDS)
        self._launch = launch
        self._worker: WorkerProcess | None = None
        # Replaced as a whole, so a reader never sees one sample with the time of another.
        self._heard: tuple[NodeSample, float] | None = None
        self._launches = 0
        self._replace_not_before = 0.0
        self._logged_stuck: tuple[str, int | None] | None = None
        self._stopping = threading.Event()
        # Readable once stop() has closed the other end, which wakes the wait for a line.
        self._wake, self._wake_by_closing = os.pipe()
        self._thread = threading.Thread(target=self._run, name="nvml-supervisor", daemon=True)

    def start(self) -> None:
        """Start the worker, and start it again whenever it fails."""
        self._thread.start()

    def stop(self) -> None:
        """End the worker; return within seconds even if it hangs. Call it once, after start()."""
        self._stopping.set()
        os.close(self._wake_by_closing)
        self._thread.join()
        os.close(self._wake)

    def latest(self) -> NodeSample | None:
        """Return the newest sample, None when there is none that is fresh."""
        heard = self._heard
        if heard is None or time.monotonic() - heard[1] > self._timing.patience_seconds:
            return None
        return heard[0]

    @property
    def seconds_since_sample(self) -> float | None:
        """Age of the newest sample, fresh or not; None before the first."""
        heard = self._heard
        return None if heard is None else time.monotonic() - heard[1]

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, None while none is running."""
        worker = self._worker
        return None if worker is None else worker.pid

    @property
    def worker_up(self) -> bool:
        """Whether a worker is running and was heard lately."""
        return self._worker is not None and self.latest() is not None

    @property
    def worker_restarts(self) -> int:
        """How many workers were started to replace another one."""
        return max(0, self._launches - 1)

    @property
    def stuck_call(self) -> StuckCall | None:
        """The driver call that hangs, as the worker last reported it."""
        sample = self.latest()
        return None if sample is None else sample.stuck_call

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._launches += 1
            try:
                failure = self._run_worker()
            except OSError as error:
                failure = _Failure(f"cannot be started: {error}")
            if failure is not None:
                self._back_off(failure)

    def _run_worker(self) -> _Failure | None:
        """Start a worker and return why it must be replaced; None when all is to stop."""
        worker = self._launch(self._timing.to_arguments(), self._environment)
        self._worker = worker
        failure = self._follow(worker)
        self._worker = None
        status = worker.end()
        if status is None:
            logger.error("NVML worker %d cannot be killed: no other until it is gone", worker.pid)
            while worker.is_running() and not self._stopping.wait(ABANDONED_POLL_SECONDS):
                continue
        elif failure == ENDED:
            # Status 0: somebody sent SIGTERM, as systemd does to all of a service's processes.
            level = logging.INFO if status == 0 else logging.WARNING
            return _Failure(f"ended with status {status}", log_level=level)
        return failure

    def _follow(self, worker: WorkerProcess) -> _Failure | None:
        quiet_until = time.monotonic() + max(FIRST_LINE_SECONDS, self._timing.patience_seconds)
        while time.monotonic() < quiet_until:
            lines = worker.read_lines(quiet_until - time.monotonic(), self._wake)
            if self._stopping.is_set():
                return None
            if lines is None:
                return ENDED
            for line in lines:
                try:
                    stuck = self._take(line).stuck_call
                except (ValueError, TypeError, KeyError) as error:
                    return _Failure(f"wrote what this exporter cannot read, {FOREIGN}: {error!r}")
                quiet_until = time.monotonic() + self._timing.patience_seconds
                if stuck is not None and self._may_replace(worker, stuck):
                    return _Failure("is stuck", at_once=True)
        return _Failure("said nothing for too long")

    def _take(self, line: bytes) -> NodeSample:
        sample = NodeSample.from_json(line)
        self._heard = (sample, time.monotonic())
        if sample.stuck_call is None:
            self._logged_stuck = None
            if time.monotonic() > self._replace_not_before + WELL_SECONDS:
                self._backoff.reset()
        return sample

    def _may_replace(self, worker: WorkerProcess, stuck: StuckCall) -> bool:
        in_kernel = worker.sleeps_in_kernel(stuck.thread_id)
        if self._logged_stuck != (stuck.function, stuck.gpu):
            self._logged_stuck = (stuck.function, stuck.gpu)
            advice = "; it sleeps in the kernel, so only the driver can end it" * in_kernel
            logger.warning("%s%s", stuck, advice)
        return not in_kernel and time.monotonic() >= self._replace_not_before

    def _back_off(self, failure: _Failure) -> None:
        seconds = self._backoff.next_seconds()
        self._replace_not_before = time.monotonic() + seconds
        logger.log(failure.log_level, "NVML worker %s; it is replaced", failure.reason)
        if not failure.at_once:
            self._stopping.wait(seconds)
