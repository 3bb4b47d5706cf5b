"""Tests of what is asked of torch.cuda, which is replaced here: there is no GPU."""

import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rank_probe.measure.boundaries import COMPLETE
from rank_probe.measure.device_clock import DeviceClock, Events
from rank_probe.torch_hooks import backward, cuda_events, private
from rank_probe.torch_hooks.cuda_events import AllocatorMemory, CudaEvents, CudaMemory
from rank_probe.wire.stages import DATA, OTHER


class FakeCuda:
    """torch.cuda as far as the probe uses it: devices, streams by handle, what was recorded."""

    device = 1
    handle = 0
    asked = -1  # the device whose stream was asked for last

    def __init__(self) -> None:
        self.recorded: list[tuple[int, object]] = []
        self.streams: list[str] = []  # in the order in which they were made

    def stream(self, device: int) -> str:
        self.streams.append(f"stream {self.handle} of cuda:{device}")
        return self.streams[-1]

    def raw_stream(self, device: int) -> int:
        self.asked = device
        return self.handle

    def event(self, *, enable_timing: bool) -> Any:
        """Return one that can neither wait nor synchronize."""
        assert enable_timing
        return SimpleNamespace(record=lambda stream: self.recorded.append((self.device, stream)))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: fake.device)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.stream)
    monkeypatch.setattr(torch._C, "_CudaEventBase", fake.event, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", bool)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", fake.raw_stream, raising=False)
    return fake


def test_event_is_recorded_on_the_current_stream(cuda: FakeCuda) -> None:
    """A boundary follows the stream that is current when it happens; each is looked up once.

    It is one of the device that trains, whichever is current.
    """
    events: Events = CudaEvents(2)
    for cuda.handle in (0, 7, 0, 7):
        assert events.stream() == cuda.handle
        events.record(events.new(), cuda.handle)
    streams = ["stream 0 of cuda:2", "stream 7 of cuda:2"]
    assert [stream for _, stream in cuda.recorded] == streams * 2
    assert (cuda.streams, cuda.asked) == (streams, 2)


def test_events_need_no_private_names(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public ones do the same, for more time."""
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    monkeypatch.delattr(torch._C, "_CudaEventBase")
    monkeypatch.setattr(torch.cuda, "Event", cuda.event)
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(private, "limitations", {})
    events = CudaEvents(1)

    assert events.stream() == 7
    assert list(private.limitations) == ["Each device event costs a few microseconds more."]


def test_runtime_is_the_one_that_torch_has_loaded(
    cuda: FakeCuda, cudart: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Events come from the loaded CUDA runtime; querying them in relaxed mode breaks no capture.

    Without a runtime, events are torch's and no other thread queries them.
    """
    events = CudaEvents(1)
    cuda_events._runtime.cache_clear()
    assert (events.may_query(), events.runtime()) == (False, None)
    library = ctypes.CDLL(str(shutil.copy(cudart._name, tmp_path / "libcudart.so.13")))
    cuda_events._runtime.cache_clear()

    assert events.may_query()
    mode = ctypes.c_int()
    library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    assert mode.value == cuda_events.RELAXED
    device = ctypes.c_longlong.in_dll(library, "stub_current_device")
    assert device.value == 1  # Its own: device 0 would get a context.
    library.stub_reset()
    event: Any
    event, busy = ctypes.c_void_p(), ctypes.c_longlong.in_dll(library, "stub_idle_at")
    library.cudaEventCreateWithFlags(ctypes.byref(event), 0)
    for busy.value, is_reached in (1, False), (0, True):
        library.cudaEventRecord(event, None)
        event.cuda_event = event.value
        assert events.is_reached(event) == is_reached
    device.value = cuda.device
    clock = DeviceClock(events)
    for mark in 5 * [DATA, OTHER | COMPLETE]:
        clock.boundary(mark)
    clock.finish()
    assert clock.steps.totals().steps == 5
    assert (cuda.asked, cuda.streams) == (1, [])


def test_device_is_that_of_the_loss() -> None:
    """A script need not call torch.cuda.set_device: model and loss are on its GPU all the same."""
    on_gpu = SimpleNamespace(device=torch.device("cuda", 3))
    assert backward._cuda_device([SimpleNamespace(), torch.ones(()), on_gpu]) == 3


@pytest.mark.parametrize("has_statistics", [True, False])
def test_memory_is_what_the_allocator_counts(
    monkeypatch: pytest.MonkeyPatch, has_statistics: bool
) -> None:
    """The allocator is asked again only after its last answer was read; it may have none."""
    asked: list[int] = []

    def stats(device: int) -> dict[str, Any]:
        asked.append(device)
        if not has_statistics:
            raise RuntimeError("does not yet support getDeviceStats")
        of = {"all": {"current": 10, "peak": 30}, "small_pool": {"current": 0, "peak": 0}}
        return {"allocated_bytes": of, "num_alloc_retries": 2}

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    memory = AllocatorMemory(3)
    for _ in range(3):
        memory.look()
    found = memory.latest()
    assert asked == [3]
    for _ in range(3):
        memory.look()

    assert (found, len(asked)) == (CudaMemory(10, 2) if has_statistics else None, 2)
