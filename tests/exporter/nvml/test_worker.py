"""The worker's process: a driver in any condition neither keeps it nor goes unexplained."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pynvml
import pytest

from exporter.nvml.calls import Calls
from exporter.nvml.process import PACKAGE_ROOT, SUPERSEDED_STATUS
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.timing import Timing
from exporter.nvml.worker import node as node_module
from exporter.nvml.worker.events import XidEvents
from exporter.nvml.worker.gpu import Gpu
from exporter.nvml.worker.node import EVENTS_EVERY, GpuJobs, NeedsNewProcess, NodeSampler
from exporter.nvml.worker.threads import Threads
from exporter.nvml.worker.xids import XidCounts
from tests import nvmlstub
from tests.exporter.clock import Clock
from tests.exporter.nvml.stub import QUICK, Scenario

# Nothing here depends on how long it is from sample to sample.
BRISK = replace(QUICK, interval_seconds=0.05)


@contextmanager
def worker(environment: Mapping[str, str], *how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker without a supervisor, as python -m unless *how* is given."""
    process = subprocess.Popen(
        [sys.executable, *(how or ("-m", "exporter.nvml.worker")), *BRISK.to_arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PACKAGE_ROOT,
        env={**os.environ, **environment},
        # A test run in the background has SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_sample(process: subprocess.Popen[bytes]) -> NodeSample:
    assert process.stdout is not None
    return NodeSample.from_json(process.stdout.readline())


def sample_with_gpus(process: subprocess.Popen[bytes], number: int) -> NodeSample:
    """Return the next sample with *number* GPUs, all of them read."""
    while True:
        sample = next_sample(process)
        if sample.gpus_visible == number and all(gpu.up for gpu in sample.gpus):
            return sample


@pytest.fixture
def environment(library: Path, scenario: Scenario) -> dict[str, str]:
    return nvmlstub.environment(library, scenario=scenario.path)


def errors(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def test_driver_newer_than_the_library_in_use_asks_for_a_new_process(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """A driver that comes after its library was loaded and does not fit it costs no minute."""
    scenario.play("nvmlInitWithFlags * 9")
    with worker(environment) as process:
        sample_with_gpus(process, 0)
        scenario.play("nvmlInitWithFlags * 18")

        assert errors(process) == ""
        assert process.wait(20) == SUPERSEDED_STATUS


# However busy this machine is, it has the time to shut NVML down.
PATIENTLY = "from exporter.nvml.worker import __main__ as w; w.CLOSE_SECONDS = 60; w.main()"


@pytest.mark.parametrize("how", ["end of file", "SIGTERM"])
def test_end_shuts_nvml_down(environment: dict[str, str], tmp_path: Path, how: str) -> None:
    """Told to end, or left alone by its parent, the worker leaves the driver in good order."""
    mark = tmp_path / "shut-down"
    environment = {**environment, "STUB_SHUTDOWN_MARK": str(mark)}
    with worker(environment, "-c", PATIENTLY) as process:
        sample_with_gpus(process, 2)
        assert process.stdin is not None
        if how == "SIGTERM":
            process.terminate()
        else:
            process.stdin.close()

        assert process.wait(20) == 0
    assert mark.exists()


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlShutdown"])
def test_hung_driver_does_not_keep_the_worker(
    environment: dict[str, str], scenario: Scenario, function: str
) -> None:
    """The worker ends on SIGTERM though a call, even nvmlShutdown, never returns."""
    with worker(environment) as process:
        sample_with_gpus(process, 2)
        scenario.play(f"{function} * hang")
        next_sample(process)
        process.terminate()

        assert process.wait(20) in (0, -signal.SIGALRM)


def test_interrupt_is_left_to_the_parent(environment: dict[str, str]) -> None:
    """Ctrl-C in a terminal reaches the worker too, which continues until its parent ends it."""
    with worker(environment) as process:
        sample_with_gpus(process, 2)
        process.send_signal(signal.SIGINT)

        assert all(next_sample(process) for _ in range(5))


def test_what_the_library_prints_is_not_taken_for_a_sample(environment: dict[str, str]) -> None:
    """A driver that writes on standard output writes into the log, not between the samples."""
    with worker({**environment, "STUB_CHATTER": "1"}) as process:
        sample_with_gpus(process, 2)
        process.terminate()

        assert errors(process) == "a word from the driver\n"


def test_crash_names_the_call(environment: dict[str, str], scenario: Scenario) -> None:
    """A segmentation fault in the driver's library leaves the name of the function in the log."""
    scenario.play("nvmlDeviceGetTemperature 1 crash")
    with worker(environment) as process:
        said = errors(process)
        assert process.wait(20) == -signal.SIGSEGV

    assert "in nvmlDeviceGetTemperature" in said


def test_driver_reloaded_under_the_worker_ends_it_in_one_line(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """A library that no longer fits the driver cannot be unloaded: the process ends and says so."""
    scenario.play("nvmlDeviceGetPowerUsage * 9")
    with worker(environment) as process:
        said = errors(process)
        assert process.wait(20) == 1

    assert "nvmlDeviceGetPowerUsage on GPU 0 returned 9: " in said
    assert len(said.splitlines()) == 1


TIMING = Timing(retry_seconds=1.0, path_kmsg="/nowhere")


class Node:
    """A node whose library does what a test says, sampled on a clock that the test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes = dict.fromkeys(("nvmlInit", "nvmlDeviceGetCount"), 0)
        self.gpus = 0
        self.closed = 0  # How often the library was.
        self.changed = False  # The GPUs that the kernel module drives are others.
        self.clock = Clock()
        monkeypatch.setattr(time, "monotonic", self.clock)
        for function in (self.nvmlInit, self.nvmlShutdown, self.nvmlDeviceGetCount):
            monkeypatch.setattr(pynvml, function.__name__, function)
        for name, code in (
            ("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_UNKNOWN),
            ("nvmlDeviceGetHandleByIndex", pynvml.NVML_ERROR_GPU_IS_LOST),
        ):
            monkeypatch.setattr(pynvml, name, Mock(__name__=name, side_effect=failure(code)))
        monkeypatch.setattr(pynvml, "nvmlSystemGetNVMLVersion", lambda: "13")
        monkeypatch.setattr(node_module, "BoundGpus", lambda: self)
        self.sampler = NodeSampler(TIMING)

    def nvmlInit(self) -> None:
        if code := self.codes["nvmlInit"]:
            raise failure(code)

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlDeviceGetCount(self) -> int:
        if code := self.codes["nvmlDeviceGetCount"]:
            raise failure(code)
        return self.gpus

    def have_changed(self) -> bool:
        return self.changed

    def after(self, seconds: float) -> NodeSample:
        self.clock.seconds += seconds
        return self.sampler.sample()


def failure(code: int) -> Exception:
    error: Exception = pynvml.NVMLError(code)
    return error


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(monkeypatch)
    yield node
    node.sampler.close()


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_library", "normal without an NVIDIA GPU"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver_not_loaded", "modprobe nvidia"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version_mismatch", "reload its kernel"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission", "open /dev/nvidia*"),
        (pynvml.NVML_ERROR_NOT_FOUND, "no_gpu", "lspci"),
        (pynvml.NVML_ERROR_UNKNOWN, "other", "restart the container"),
    ],
)
def test_each_failure_to_open_has_its_reason(
    node: Node, code: int, reason: str, words: str
) -> None:
    """No library, no driver and the other reasons are distinguished, with advice."""
    node.codes["nvmlInit"] = code
    sample = node.after(0.0)

    assert (sample.gpus_visible, sample.error_reason) == (0, reason)
    assert f"nvmlInit returned {code}: " in sample.error
    assert words in sample.error


def test_driver_without_gpu_is_closed_and_asked_again(node: Node) -> None:
    """NVML counts once, when it is opened; a driver that cannot count does not end the worker."""
    assert (node.after(0.0).error_reason, node.closed) == ("no_gpu", 1)
    node.codes["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_UNKNOWN
    assert node.after(0.9).error_reason == "no_gpu"
    failed = node.after(0.1)
    assert (failed.error_reason, node.closed) == ("other", 2)
    assert "nvmlDeviceGetCount returned 999" in failed.error
    node.codes["nvmlDeviceGetCount"], node.gpus = 0, 1
    sample = node.after(2.0)

    assert (sample.error_reason, sample.gpus_visible, node.closed) == (None, 1, 2)
    # A GPU is listed though the driver will not say its version.
    assert (sample.driver_version, sample.nvml_version) == (None, "13")


def test_library_that_never_fits_makes_way_after_a_minute(node: Node) -> None:
    """A mismatch is reported for that long, while the log is quiet; then a new process tries."""
    node.codes["nvmlInit"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    for seconds in (0.0, 59.0, 0.9):
        assert node.after(seconds).error_reason == "version_mismatch"

    node.after(0.1)
    with pytest.raises(NeedsNewProcess):
        node.after(0.0)


@pytest.mark.parametrize("hangs", [False, True])
def test_other_gpus_need_a_new_process(
    node: Node, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """NVML counts once. While a call hangs it is left to the supervisor, which knows of that."""
    node.gpus = 1
    sample = node.after(0.0)
    node.changed = True
    if hangs:
        monkeypatch.setattr(Calls, "stuck", lambda self: sample)
        assert node.after(1.0).gpus_visible == 1
    else:
        with pytest.raises(NeedsNewProcess):
            node.after(1.0)


class AtOnce(Threads):
    """Does the work when it is submitted."""

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(work())
        return future


class Fetched:
    """XID events of a GPU, one more each time that they are fetched."""

    def __init__(self) -> None:
        self.counts = XidCounts()

    def read(self) -> XidCounts:
        self.counts.add(79)
        return self.counts


class LostGpu:
    """A GPU that never answers."""

    def read(self) -> GpuSample:
        return self.down()

    def down(self) -> GpuSample:
        return GpuSample(0, up=False)

    def read_slow(self) -> dict[str, Any]:
        return {}


def test_events_are_fetched_with_each_fifth_reading_and_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait in the driver; what was counted is told however old it is, of a lost GPU too."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    jobs = GpuJobs(cast(Gpu, LostGpu()), AtOnce(), cast(XidEvents, Fetched()))
    told = []
    for _ in range(2 * EVENTS_EVERY + 1):
        jobs.start()
        jobs.start_slow()
        clock.seconds += 3600.0
        told.append(jobs.sample(5.0, None))

    assert [sample.xid_events for sample in told] == [*[1] * EVENTS_EVERY, *[2] * EVENTS_EVERY, 3]
    assert told[0].xid_errors == {"79": 1}  # It was told, and is not counted up afterwards.
    assert {(sample.up, sample.xid_source) for sample in told} == {(False, "nvml")}
