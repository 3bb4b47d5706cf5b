"""CUDA events for the device clock, and the memory statistics of torch's allocator."""

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import torch

from rank_probe.measure.boundaries import packed
from rank_probe.process.small_files import beginning
from rank_probe.torch_hooks.private import find

# cudaStreamCaptureModeRelaxed: the calls of this thread break no capture of another one.
RELAXED: Final = 2
# Of the CUDA runtime, in the order of the recorder in C.
FUNCTIONS: Final = (
    *("cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery", "cudaEventElapsedTime"),
    *("cudaStreamIsCapturing", "cudaGetDevice", "cudaSetDevice"),
    *("cudaGetLastError", "cudaGetErrorString"),
)
# Of a process with torch and CUDA; it takes half a megabyte.
MAPS_BYTES: Final = 1 << 23


class CudaEvents:
    """Timed events on the current stream of the device that the creating thread uses.

    Create it on the training thread once CUDA is initialised. The methods only enqueue, query and
    create; none of them waits for the device. But a full launch queue blocks a record, as it blocks
    any launch; recent torch releases drop the interpreter's lock there, so the heartbeat continues.
    """

    def __init__(self) -> None:
        self.device = torch.cuda.current_device()
        self._streams: dict[int, torch.cuda.Stream] = {}
        # The handle costs a fraction of torch.cuda.current_stream(), which creates an object; the
        # event is that of torch.cuda without functions in Python around it.
        without = "Each device event costs a few microseconds more."
        self._handle = find(torch._C, "_cuda_getCurrentRawStream", without) or _handle_of_object
        self._event = find(torch._C, "_CudaEventBase", without) or torch.cuda.Event
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

    def new(self) -> torch.cuda.Event:
        """Return an event; CUDA creates it when it is first recorded."""
        event: torch.cuda.Event = self._event(enable_timing=True)
        return event

    def record(self, event: torch.cuda.Event) -> int:
        """Record *event* on the calling thread's stream on the device; return the stream.

        A thread of the autograd engine uses its caller's streams in its final callbacks. A device
        that is current only for a moment (`with torch.cuda.device`) makes no difference.
        """
        handle: int = self._handle(self.device)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self.device)
        event.record(stream)
        return handle

    def follow(self) -> bool:
        """Switch to the calling thread's current device; return whether it is another one."""
        device = torch.cuda.current_device()
        if device == self.device:
            return False
        self.device = device
        self._streams.clear()
        return True

    def runtime(self) -> tuple[bytes, Callable[[int], int]] | None:
        """Return the addresses of FUNCTIONS, and what returns the current stream of a device.

        None where torch has no CUDA runtime of its own, as built for ROCm.
        """
        library = _runtime()
        if library is None or not all(hasattr(library, name) for name in FUNCTIONS):
            return None
        return addresses(library), self._handle

    def may_query(self, device: int) -> bool:
        """Let the calling thread query *device*, whatever others capture; return whether it may.

        It must not be the training thread, whose device and mode are the user's.
        """
        library = _runtime()
        if library is None:
            return False
        torch.cuda.set_device(device)  # A call would make a context on device 0 otherwise.
        mode = ctypes.c_int(RELAXED)
        error: int = library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        return error == 0


@cache
def _runtime() -> "ctypes.CDLL | None":
    """Return the CUDA runtime that torch has loaded; None if there is none of its own."""
    found = re.search(rb"/\S*/libcudart\S*\.so\S*", beginning("/proc/self/maps", MAPS_BYTES) or b"")
    return None if found is None else ctypes.CDLL(os.fsdecode(found[0]))


def addresses(library: ctypes.CDLL, clock: int = 0) -> bytes:
    """Return where *library* has FUNCTIONS, and a test its *clock*, packed."""
    functions = (ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in FUNCTIONS)
    return packed([*(function.value or 0 for function in functions), clock])


def _handle_of_object(device: int) -> int:
    handle: int = torch.cuda.current_stream(device).cuda_stream
    return handle


class CudaMemory(NamedTuple):
    """Bytes that tensors hold, and retried allocations."""

    allocated_bytes: int
    alloc_retries: int


def memory(device: int) -> CudaMemory | None:
    """Return this process's allocator statistics for *device*; None if CUDA is not in use.

    Does not initialise CUDA, and reads the allocator, not the device; any thread may call it. It
    takes the allocator's lock, so it waits while another thread is inside cudaMalloc. *device* is a
    parameter because each thread has its own current device.
    """
    if not torch.cuda.is_initialized():
        return None
    try:
        # Like torch.cuda.memory_stats, without flattening and sorting some two hundred keys.
        stats = torch.cuda.memory_stats_as_nested_dict(device)
    except RuntimeError:  # A pluggable allocator keeps no statistics.
        return None
    return CudaMemory(
        allocated_bytes=stats["allocated_bytes"]["all"]["current"],
        alloc_retries=stats["num_alloc_retries"],
    )
