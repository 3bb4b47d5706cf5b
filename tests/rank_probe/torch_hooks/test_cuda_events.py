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
from rank_probe.torch_hooks import cuda_events, private
from rank_probe.torch_hooks.cuda_events import CudaEvents, CudaMemory, memory
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

    A thread that moved to another device is followed at the end of a step, and it is said once.
    """
    events: Events = CudaEvents()
    for cuda.handle in (0, 7, 0, 7):
        assert events.record(events.new()) == cuda.handle
    on_first = ["stream 0 of cuda:1", "stream 7 of cuda:1"]
    assert cuda.recorded == [(1, stream) for stream in on_first * 2]
    assert cuda.streams == on_first
    assert not events.follow()

    cuda.device = 2
    events.record(events.new())
    assert cuda.asked == 1  # Until then events stay on the device on which they began.
    assert [events.follow(), events.follow()] == [True, False]
    events.record(events.new())
    assert cuda.recorded[4:] == [(2, "stream 7 of cuda:1"), (2, "stream 7 of cuda:2")]


def test_device_events_need_no_private_names(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public ones do the same, for more time."""
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    monkeypatch.delattr(torch._C, "_CudaEventBase")
    monkeypatch.setattr(torch.cuda, "Event", cuda.event)
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(private, "limitations", {})
    events = CudaEvents()

    assert events.record(events.new()) == 7
    assert list(private.limitations) == ["Each device event costs a few microseconds more."]


def test_runtime_is_the_one_that_torch_has_loaded(
    cuda: FakeCuda, cudart: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its events are not torch's, and a thread that queries breaks no capture: its mode is relaxed.

    Without a runtime no other thread queries, and events are torch's.
    """
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    events = CudaEvents()
    cuda_events._runtime.cache_clear()
    assert (events.may_query(1), events.runtime()) == (False, None)
    library = ctypes.CDLL(str(shutil.copy(cudart._name, tmp_path / "libcudart.so.13")))
    cuda_events._runtime.cache_clear()

    assert events.may_query(1)
    mode = ctypes.c_int()
    library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    assert mode.value == cuda_events.RELAXED
    assert chosen == [1]  # Its own: device 0 would get a context.
    library.stub_reset()
    ctypes.c_longlong.in_dll(library, "stub_current_device").value = cuda.device
    clock = DeviceClock(events)
    for mark in 5 * [DATA, OTHER | COMPLETE]:
        clock.boundary(mark)
    clock.finish()
    assert clock.steps.totals().steps == 5
    assert (cuda.asked, cuda.streams) == (1, [])


@pytest.mark.parametrize("has_statistics", [True, False])
def test_memory_is_what_the_allocator_counts(
    monkeypatch: pytest.MonkeyPatch, has_statistics: bool
) -> None:
    """The readings are of the asked device; an allocator without statistics has none.

    Nor has a process that uses no GPU, and asking does not initialise CUDA.
    """
    assert memory(3) is None
    assert not torch.cuda.is_initialized()

    def stats(device: int) -> dict[str, Any]:
        if not has_statistics:
            raise RuntimeError("does not yet support getDeviceStats")
        of = {"all": {"current": 10 * device, "peak": 30}, "small_pool": {"current": 0, "peak": 0}}
        return {"allocated_bytes": of, "num_alloc_retries": 2}

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)

    assert memory(3) == (CudaMemory(30, 2) if has_statistics else None)
