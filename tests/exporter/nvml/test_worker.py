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
from types import SimpleNamespace
from typing import Any, cast

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
from tests.exporter.nvml.stub import PATIENT, QUICK, Scenario, wait_for

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


def test_driver_that_is_loaded_later_is_found(
    environment: dict[str, str], scenario: Scenario
) -> None:
    """A node whose driver comes up after the exporter needs no restart."""
    scenario.play("nvmlInitWithFlags * 9")
    with worker(environment) as process:
        assert sample_with_gpus(process, 0).error_reason == "driver_not_loaded"
        scenario.play()

        assert sample_with_gpus(process, 2).error_reason is None


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


@pytest.mark.parametrize("code", [1, 9, 18])
def test_driver_reloaded_under_the_worker_ends_it_in_one_line(
    environment: dict[str, str], scenario: Scenario, code: int
) -> None:
    """A library that no longer fits the driver cannot be unloaded: the process ends and says so."""
    scenario.play(f"nvmlDeviceGetPowerUsage * {code}")
    with worker(environment) as process:
        said = errors(process)
        assert process.wait(20) == 1

    assert f"nvmlDeviceGetPowerUsage on GPU 0 returned {code}: " in said
    assert len(said.splitlines()) == 1


def test_worker_does_not_outlive_a_killed_parent(environment: dict[str, str]) -> None:
    """SIGKILL of the exporter leaves no worker behind."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *PATIENT.to_arguments()],
        stdout=subprocess.PIPE,
        cwd=PACKAGE_ROOT,
        env={**os.environ, **environment},
    )
    with parent:
        try:
            assert parent.stdout is not None
            worker_pid = int(parent.stdout.readline())
        finally:
            parent.kill()

    wait_for(lambda: not is_running(worker_pid))


def is_running(pid: int) -> bool:
    """Whether the process is there, and has not just ended without anyone to take note of it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


PARENT = """
import sys, time
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing

supervisor = NvmlSupervisor(Timing.from_arguments(sys.argv[1:]))
supervisor.start()
while supervisor.latest() is None:
    time.sleep(0.02)
print(supervisor.worker_pid, flush=True)
time.sleep(60)
"""
TIMING = Timing(interval_seconds=0.02, stale_seconds=20.0, slow_seconds=20.0, retry_seconds=0.0)


class Library:
    """Stands in for the library: what opening NVML answers, and how often it was closed."""

    def __init__(self) -> None:
        self.codes = dict.fromkeys(("init", "count"), 0)
        self.count = 0
        self.closed = 0

    def nvmlInit(self) -> None:
        _raise(self.codes["init"])

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlDeviceGetCount(self) -> int:
        _raise(self.codes["count"])
        return self.count

    def nvmlSystemGetDriverVersion(self) -> str:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


class Bound:
    """The GPUs that the kernel module drives."""

    changed = False

    def have_changed(self) -> bool:
        return Bound.changed


def _raise(code: int) -> None:
    if code:
        raise pynvml.NVMLError(code)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Return the driver that pynvml talks to."""
    driver = Library()
    for name in dir(driver):
        if name.startswith("nvml"):
            monkeypatch.setattr(pynvml, name, getattr(driver, name))
    monkeypatch.setattr(node_module, "BoundGpus", Bound)
    monkeypatch.setattr(Bound, "changed", False)
    return driver


@pytest.fixture
def node(driver: Library) -> Iterator[NodeSampler]:
    node = NodeSampler(TIMING)
    yield node
    node.close()


def sample_when(node: NodeSampler, condition: Callable[[NodeSample], bool]) -> NodeSample:
    """Return the first sample for which *condition* holds."""
    found: list[NodeSample] = []

    def is_found() -> bool:
        found.append(node.sample())
        return condition(found[-1])

    wait_for(is_found)
    return found[-1]


def with_a_gpu(driver: Library, node: NodeSampler) -> NodeSample:
    driver.count = 1
    return sample_when(node, lambda sample: sample.gpus_visible == 1)


def without_a_gpu(node: NodeSampler) -> NodeSample:
    return sample_when(node, lambda sample: sample.gpus_visible == 0)


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
    driver: Library, node: NodeSampler, code: int, reason: str, words: str
) -> None:
    """No library, no driver and the other reasons are distinguished, with advice."""
    driver.codes["init"] = code
    sample = without_a_gpu(node)

    assert sample.error_reason == reason
    assert f"nvmlInit returned {code}: " in sample.error
    assert words in sample.error


def test_driver_without_gpu_is_closed_and_asked_again(driver: Library, node: NodeSampler) -> None:
    """NVML counts once, when it is opened; a driver that cannot count does not end the worker."""
    assert without_a_gpu(node).error_reason == "no_gpu"
    assert driver.closed > 0
    driver.codes["count"] = pynvml.NVML_ERROR_UNKNOWN
    sample_when(node, lambda sample: sample.error_reason == "other")
    closed = driver.closed
    failed = sample_when(node, lambda sample: driver.closed > closed + 1)
    assert "nvmlDeviceGetCount returned 999" in failed.error
    driver.codes["count"] = 0
    sample = with_a_gpu(driver, node)

    assert sample.error_reason is None
    # A GPU is listed though the driver will not say its version.
    assert (sample.driver_version, sample.nvml_version) == (None, "13")


def test_library_that_never_fits_makes_way_after_a_while(
    driver: Library, node: NodeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mismatch is reported for a minute, while the log is quiet; then a new process tries."""
    monkeypatch.setattr(node_module, "NO_DRIVER_CAP_SECONDS", 0.2)
    driver.codes["init"] = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    begun = time.monotonic()
    assert without_a_gpu(node).error_reason == "version_mismatch"

    with pytest.raises(NeedsNewProcess):
        sample_when(node, lambda sample: False)
    assert time.monotonic() - begun >= 0.2


@pytest.mark.parametrize("hangs", [False, True])
def test_other_gpus_need_a_new_process(
    driver: Library, node: NodeSampler, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """NVML counts once. While a call hangs it is left to the supervisor, which knows of that."""
    sample = with_a_gpu(driver, node)
    Bound.changed = True
    if hangs:
        monkeypatch.setattr(Calls, "stuck", lambda self: sample)
        assert node.sample().gpus_visible == 1
    else:
        with pytest.raises(NeedsNewProcess):
            node.sample()


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
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    jobs = GpuJobs(cast(Gpu, LostGpu()), AtOnce(), cast(XidEvents, Fetched()))
    told = []
    for _ in range(2 * EVENTS_EVERY + 1):
        jobs.start()
        jobs.start_slow()
        clock.now += 3600.0
        told.append(jobs.sample(5.0, None))

    assert [sample.xid_events for sample in told] == [*[1] * EVENTS_EVERY, *[2] * EVENTS_EVERY, 3]
    assert told[0].xid_errors == {"79": 1}  # It was told, and is not counted up afterwards.
    assert {(sample.up, sample.xid_source) for sample in told} == {(False, "nvml")}
