"""All GPUs of a node: a driver call that blocks or hangs does not delay the other GPUs."""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import pynvml

from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import PROCESS_OBSOLETE, CallFailed, Calls
from exporter.nvml.readings import several_calls
from exporter.nvml.sample import GpuSample, NodeSample, NoGpuReason
from exporter.nvml.timing import Timing
from exporter.nvml.worker.events import XidEvents
from exporter.nvml.worker.gpu import Gpu
from exporter.nvml.worker.kmsg import Kmsg, open_kmsg
from exporter.nvml.worker.threads import HELD_UP_SECONDS, Threads
from exporter.nvml.worker.xids import XidCounts, XidSource

# By nvmlReturn_t of nvmlInit (nvml.h).
REASONS: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: NoGpuReason.NO_LIBRARY,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: NoGpuReason.DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: NoGpuReason.VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION: NoGpuReason.NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND: NoGpuReason.NO_GPU,
}
ADVICE: Final = {
    NoGpuReason.NO_LIBRARY: "normal without an NVIDIA GPU; else install the driver, "
    "or let this container see it (NVIDIA_DRIVER_CAPABILITIES=utility)",
    NoGpuReason.DRIVER_NOT_LOADED: "load the driver's kernel module (modprobe nvidia)",
    NoGpuReason.VERSION_MISMATCH: "the driver was upgraded or downgraded: "
    "reload its kernel modules, or reboot",
    NoGpuReason.NO_PERMISSION: "let the exporter's user open /dev/nvidia*",
    NoGpuReason.NO_GPU: "check lspci and the kernel's log, "
    "or which devices this container can access",
    NoGpuReason.OTHER: "see the kernel's log (dmesg | grep NVRM); "
    "in a container that lost its devices, restart the container",
}
T = TypeVar("T")

# Events wait in the driver, so it is enough to fetch them with every fifth reading.
EVENTS_EVERY: Final = 5
# Also how long a process keeps reporting that its library does not match the driver.
NO_DRIVER_CAP_SECONDS: Final = 60.0
# The module creates a directory here when it binds a GPU, and removes it when it unbinds it
# (open-gpu-kernel-modules: nv_procfs_add_gpu in probe, nv_procfs_remove_gpu in remove).
DRIVER_GPUS: Final = Path("/proc/driver/nvidia/gpus")
LOOK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason, with NVML's own *words*."""

    reason: NoGpuReason
    words: str

    def __str__(self) -> str:
        return f"no GPU can be read: {self.words}; {ADVICE[self.reason]}"


NO_GPU_LISTED: Final = Problem(NoGpuReason.NO_GPU, "the driver lists none")


def problem_of(failure: CallFailed) -> Problem:
    """Return what *failure* to open NVML means."""
    return Problem(REASONS.get(failure.code, NoGpuReason.OTHER), str(failure))


class NeedsNewProcess(Exception):
    """This process can read no more; a new one can."""


class RepeatedJob(Generic[T]):
    """Work that may never return, run repeatedly in a thread, one run at a time."""

    def __init__(self, threads: Threads, work: Callable[[], T]) -> None:
        self._threads = threads
        self._work = work
        self._run: Future[tuple[T, float]] | None = None
        self._last: tuple[T, float] | None = None

    def start(self) -> Future[tuple[T, float]] | None:
        """Start a run and return it; None while the last one hangs. Raises that run's error."""
        if self._run is not None:
            if not self._run.done():
                return None
            self._last = self._run.result()
        self._run = self._threads.submit(lambda: (self._work(), time.monotonic()))
        return self._run

    def result(self, stale_seconds: float) -> T | None:
        """Return the result of the last finished run, unless it is older than *stale_seconds*."""
        if self._run is not None and self._run.done():
            self._last = self._run.result()
        if self._last is None or time.monotonic() - self._last[1] > stale_seconds:
            return None
        return self._last[0]


class GpuJobs:
    """The jobs of one GPU: quick readings, slow readings and, if needed, its events."""

    def __init__(self, gpu: Gpu, threads: Threads, events: XidEvents | None) -> None:
        self._gpu = gpu
        self._reading = RepeatedJob(threads, gpu.read)
        self._slow = RepeatedJob(threads, gpu.read_slow)
        self._events = (
            None
            if events is None
            else RepeatedJob(threads, lambda: _xid_fields(events.read(), XidSource.NVML))
        )
        self._starts = 0

    def start(self) -> Future[tuple[GpuSample, float]] | None:
        """Start the quick one, which the sample waits for."""
        return self._reading.start()

    def start_slow(self) -> None:
        """Start the others that are due; call it once no quick one is waiting."""
        self._slow.start()
        if self._events is not None and self._starts % EVENTS_EVERY == 0:
            self._events.start()
        self._starts += 1

    def sample(self, stale_seconds: float, kmsg: Kmsg | None) -> GpuSample:
        """Combine the latest results of the jobs; *kmsg* is the kernel's log, if it shows XIDs."""
        sample = self._reading.result(stale_seconds) or self._gpu.down()
        fields = self._xids(sample, kmsg)
        if sample.up:
            fields |= self._slow.result(stale_seconds) or {}
        return replace(sample, **fields)

    def _xids(self, sample: GpuSample, kmsg: Kmsg | None) -> dict[str, Any]:
        """Return the XID errors, also of a GPU that is down: they explain why."""
        if kmsg is not None and sample.pci_bus_id:
            return _xid_fields(kmsg.counts(sample.pci_bus_id), XidSource.KMSG)
        if self._events is None:
            return {}
        return dict(self._events.result(math.inf) or {})  # Counts never become stale.


def _xid_fields(counts: XidCounts | None, source: XidSource) -> dict[str, Any]:
    if counts is None:
        return {}
    return {
        "xid_events": counts.events,
        "xid_errors": counts.by_kind(),
        "xid_source": str(source),
    }


class BoundGpus:
    """Compares the current GPUs with those at its own start, by PCI bus id."""

    def __init__(
        self, directory: Path = DRIVER_GPUS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._first = self._last = self._list()
        self._look_at = clock() + LOOK_SECONDS

    def have_changed(self) -> bool:
        """Whether two checks in a row, 10 s apart, saw the same GPUs, other than at the start."""
        if self._clock() < self._look_at:
            return False
        self._look_at = self._clock() + LOOK_SECONDS
        before, self._last = self._last, self._list()
        return self._first != self._last == before

    def _list(self) -> frozenset[str]:
        try:
            return frozenset(entry.name for entry in self._directory.iterdir())
        except OSError:
            return frozenset()  # No driver, or a container that cannot see it: never a change.


@dataclass(frozen=True, slots=True)
class Driver:
    """What NVML returned when it was opened."""

    gpus: tuple[GpuJobs, ...] = ()
    driver_version: str | None = None
    nvml_version: str | None = None
    # Why there is no GPU, None if there is one.
    problem: Problem | None = None
    bound: BoundGpus | None = None


class NodeSampler:
    """Opens NVML once there is a driver, and samples its GPUs. One thread uses it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._calls = Calls(timing.patience_seconds, timing.slow_seconds)
        self._threads = Threads()
        self._opening = RepeatedJob(self._threads, self._open)
        # It has all of NVML's events and more; using only one source counts nothing twice.
        self._kmsg = open_kmsg(timing.path_kmsg)
        self._backoff = Backoff(timing.retry_seconds, NO_DRIVER_CAP_SECONDS)
        self._open_again_at = 0.0
        # None until NVML has answered, or is known to be missing.
        self._driver: Driver | None = None

    def sample(self) -> NodeSample:
        """Read all GPUs and return within half an interval, whatever hangs.

        Raise CallFailed if this process can read no more because of the driver, NeedsNewProcess if
        another one is needed for another reason.
        """
        deadline = time.monotonic() + self._timing.interval_seconds / 2
        self._compare_with_driver()
        if self._has_no_gpu() and time.monotonic() >= self._open_again_at:
            self._wait_until(deadline, [self._opening.start()])
        driver = self._driver or Driver()
        self._wait_until(deadline, [gpu.start() for gpu in driver.gpus])
        for gpu in driver.gpus:
            gpu.start_slow()
        return NodeSample(
            time.time(),
            gpus_visible=None if self._driver is None else len(driver.gpus),
            driver_version=driver.driver_version,
            nvml_version=driver.nvml_version,
            gpus=self._gpus(driver),
            stuck_call=self._calls.stuck(),
            error_reason=None if driver.problem is None else driver.problem.reason,
            error=str(driver.problem or ""),
            worker_pid=os.getpid(),
            monotonic_seconds=time.monotonic(),
        )

    def _gpus(self, driver: Driver) -> tuple[GpuSample, ...]:
        patience = self._timing.patience_seconds
        if self._kmsg is not None:
            self._kmsg.read()
        return tuple(gpu.sample(patience, self._kmsg) for gpu in driver.gpus)

    def _wait_until(self, deadline: float, runs: Sequence[Future[Any] | None]) -> None:
        left = {run for run in runs if run is not None}
        while left and (seconds := deadline - time.monotonic()) > 0:
            left = wait(left, timeout=min(seconds, HELD_UP_SECONDS)).not_done
            self._threads.relieve()

    def close(self) -> None:
        """Shut NVML down, unless a call still hangs: then only ending the process is safe."""
        until = time.monotonic() + self._timing.interval_seconds
        while not self._calls.is_idle() and time.monotonic() < until:
            time.sleep(0.01)
        if self._calls.is_idle() and not self._has_no_gpu():
            self._calls(None, pynvml.nvmlShutdown)

    def _has_no_gpu(self) -> bool:
        return self._driver is None or not self._driver.gpus

    def _compare_with_driver(self) -> None:
        """Raise NeedsNewProcess if the driver has added or removed a GPU, unnoticed by NVML.

        Only this, not a timer, replaces the process for a lost GPU: a new process loses the
        counters of the healthy GPUs, and nvmlInit next to a sick GPU can hang, which hides them
        too.
        """
        bound = None if self._driver is None else self._driver.bound
        if self._calls.stuck() is not None:
            return  # A new process might hang in the driver as well.
        if bound is not None and bound.have_changed():
            print("rankskew: the driver's GPUs have changed; NVML is reopened", file=sys.stderr)
            raise NeedsNewProcess

    def _open(self) -> None:
        bound = BoundGpus()  # Before NVML counts, so that a GPU added meanwhile shows as a change.
        try:
            self._calls(None, pynvml.nvmlInit)
        except CallFailed as failure:
            return self._look_again_later(problem_of(failure))
        try:
            count = self._calls(None, pynvml.nvmlDeviceGetCount)
        except CallFailed as failure:
            self._calls(None, pynvml.nvmlShutdown)
            return self._look_again_later(problem_of(failure))
        if count == 0:  # NVML counts once, when it is initialized.
            self._calls(None, pynvml.nvmlShutdown)
            return self._look_again_later(NO_GPU_LISTED)
        self._driver = Driver(
            tuple(self._jobs(index) for index in range(count)),
            self._text(pynvml.nvmlSystemGetDriverVersion),
            self._text(pynvml.nvmlSystemGetNVMLVersion),
            bound=bound,
        )

    def _text(self, function: Callable[[], str]) -> str | None:
        try:
            return self._calls(None, function)
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            return None  # An unknown version must not make a GPU count as lost.

    def _gpu(self, index: int) -> Gpu:
        timing = self._timing
        quick, slow = several_calls.quick(timing), several_calls.slow(timing)
        return Gpu(index, self._calls, timing.retry_seconds, quick, slow)

    def _jobs(self, index: int) -> GpuJobs:
        retry = self._timing.retry_seconds
        events = XidEvents(index, self._calls, retry) if self._kmsg is None else None
        return GpuJobs(self._gpu(index), self._threads, events)

    def _look_again_later(self, problem: Problem) -> None:
        seconds = self._backoff.next_seconds()
        if problem.reason == NoGpuReason.VERSION_MISMATCH:
            if self._driver is not None:
                raise NeedsNewProcess  # This process keeps the library that it has loaded.
            seconds = NO_DRIVER_CAP_SECONDS
        self._open_again_at = time.monotonic() + seconds
        self._driver = Driver(problem=problem)
