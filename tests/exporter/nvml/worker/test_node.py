"""A node with unreadable GPUs gives the reason, and one whose GPUs change gets a new process."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest

from exporter.nvml.calls import Calls
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.timing import Timing
from exporter.nvml.worker import node as node_module
from exporter.nvml.worker.events import XidEvents
from exporter.nvml.worker.gpu import Gpu
from exporter.nvml.worker.node import EVENTS_EVERY, GpuJobs, NeedsNewProcess, NodeSampler
from exporter.nvml.worker.threads import Threads
from exporter.nvml.worker.xids import XidCounts
from tests.exporter.nvml.stub import wait_for

TIMING = Timing(interval_seconds=0.02, stale_seconds=20.0, slow_seconds=20.0, retry_seconds=0.0)


class Driver:
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
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return the driver that pynvml talks to."""
    driver = Driver()
    for name in dir(driver):
        if name.startswith("nvml"):
            monkeypatch.setattr(pynvml, name, getattr(driver, name))
    monkeypatch.setattr(node_module, "BoundGpus", Bound)
    monkeypatch.setattr(Bound, "changed", False)
    return driver


@pytest.fixture
def node(driver: Driver) -> Iterator[NodeSampler]:
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


def with_a_gpu(driver: Driver, node: NodeSampler) -> NodeSample:
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
    driver: Driver, node: NodeSampler, code: int, reason: str, words: str
) -> None:
    """No library, no driver and the other reasons are distinguished, with advice."""
    driver.codes["init"] = code
    sample = without_a_gpu(node)

    assert sample.error_reason == reason
    assert f"nvmlInit returned {code}: " in sample.error
    assert words in sample.error


def test_driver_without_gpu_is_closed_and_asked_again(driver: Driver, node: NodeSampler) -> None:
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
    driver: Driver, node: NodeSampler, monkeypatch: pytest.MonkeyPatch
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
    driver: Driver, node: NodeSampler, monkeypatch: pytest.MonkeyPatch, hangs: bool
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
