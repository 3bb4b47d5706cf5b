"""All GPUs of a node: every driver call in a thread of its own, so none can hold up another."""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import pynvml

from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.gpu import Gpu
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.timing import Timing

T = TypeVar("T")

NO_DRIVER_CAP_SECONDS: Final = 60.0
# Two jobs a GPU at most; threads are only made when they are needed.
THREADS: Final = 256


class Job(Generic[T]):
    """Work that may never return, run again and again in a thread, one run at a time."""

    def __init__(self, threads: Executor, work: Callable[[], T]) -> None:
        self._threads = threads
        self._work = work
        self._run: Future[tuple[T, float]] | None = None
        self._last: tuple[T, float] | None = None

    def start(self) -> Future[tuple[T, float]] | None:
        """Start a run and return it; None while the one before hangs. Raises what that raised."""
        if self._run is not None:
            if not self._run.done():
                return None
            self._last = self._run.result()
        self._run = self._threads.submit(lambda: (self._work(), time.monotonic()))
        return self._run

    def result(self, stale_seconds: float) -> T | None:
        """Return what the last finished run returned, unless it is older than *stale_seconds*."""
        if self._run is not None and self._run.done():
            self._last = self._run.result()
        if self._last is None or time.monotonic() - self._last[1] > stale_seconds:
            return None
        return self._last[0]


class GpuJobs:
    """The two jobs of one GPU: everything that answers at once, and the slow PCIe throughput."""

    def __init__(self, gpu: Gpu, threads: Executor) -> None:
        self._gpu = gpu
        self._reading = Job(threads, gpu.read)
        self._pcie = Job(threads, gpu.read_pcie)

    def start(self) -> Future[tuple[GpuSample, float]] | None:
        """Start both; return the quick one, the only one worth waiting for."""
        self._pcie.start()
        return self._reading.start()

    def sample(self, stale_seconds: float) -> GpuSample:
        """Put together what the jobs brought home lately."""
        sample = self._reading.result(stale_seconds)
        if sample is None or not sample.up:
            return sample or self._gpu.down()
        pcie = self._pcie.result(stale_seconds) or {}
        return replace(sample, **pcie)  # type: ignore[arg-type]  # names fields that hold numbers


@dataclass(frozen=True, slots=True)
class Driver:
    """What NVML said when it was opened."""

    gpus: tuple[GpuJobs, ...] = ()
    driver_version: str | None = None
    nvml_version: str | None = None


class Node:
    """Opens NVML when there is a driver and samples its GPUs. One thread uses it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._calls = Calls(timing.patience_seconds, timing.slow_seconds)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="nvml")
        self._opening = Job(self._threads, self._open)
        self._backoff = Backoff(timing.retry_seconds, NO_DRIVER_CAP_SECONDS)
        self._open_again_at = 0.0
        # None until NVML has answered, or is known to be missing.
        self._driver: Driver | None = None
        self._reason_without_gpu = ""

    def sample(self) -> NodeSample:
        """Read all GPUs and return within half an interval, whatever hangs.

        Raise CallFailed when this process can read no more and a new one is needed.
        """
        deadline = time.monotonic() + self._timing.interval_seconds / 2
        if self._has_no_gpu() and time.monotonic() >= self._open_again_at:
            _wait_until(deadline, [self._opening.start()])
        driver = self._driver or Driver()
        _wait_until(deadline, [gpu.start() for gpu in driver.gpus])
        return NodeSample(
            time.time(),
            gpus_visible=None if self._driver is None else len(driver.gpus),
            driver_version=driver.driver_version,
            nvml_version=driver.nvml_version,
            gpus=tuple(gpu.sample(self._timing.patience_seconds) for gpu in driver.gpus),
            stuck_call=self._calls.stuck(),
        )

    def close(self) -> None:
        """Shut NVML down, unless a call still hangs: then only the end of the process is safe."""
        self._threads.shutdown(wait=False)
        until = time.monotonic() + self._timing.interval_seconds
        while not self._calls.is_idle() and time.monotonic() < until:
            time.sleep(0.01)
        if self._calls.is_idle() and not self._has_no_gpu():
            self._calls(None, pynvml.nvmlShutdown)

    def _has_no_gpu(self) -> bool:
        return self._driver is None or not self._driver.gpus

    def _open(self) -> None:
        try:
            self._calls(None, pynvml.nvmlInit)
        except CallFailed as failure:
            if failure.code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                raise
            return self._look_again_later(str(failure))
        count = self._calls(None, pynvml.nvmlDeviceGetCount)
        if count == 0:  # NVML counts once, when it is initialised.
            self._calls(None, pynvml.nvmlShutdown)
            return self._look_again_later("the driver sees none")
        self._driver = Driver(
            tuple(GpuJobs(self._gpu(index), self._threads) for index in range(count)),
            self._calls(None, pynvml.nvmlSystemGetDriverVersion),
            self._calls(None, pynvml.nvmlSystemGetNVMLVersion),
        )

    def _gpu(self, index: int) -> Gpu:
        timing = self._timing
        return Gpu(index, self._calls, timing.retry_seconds, 2 * timing.interval_seconds)

    def _look_again_later(self, reason: str) -> None:
        self._driver = Driver()
        self._open_again_at = time.monotonic() + self._backoff.next_seconds()
        if reason != self._reason_without_gpu:
            self._reason_without_gpu = reason
            print(f"rankskew: no GPU on this node: {reason}", file=sys.stderr, flush=True)


def _wait_until(deadline: float, runs: Sequence[Future[T] | None]) -> None:
    wait([run for run in runs if run is not None], timeout=max(0.0, deadline - time.monotonic()))
