"""CUDA events for the device clock, and the memory statistics of torch's allocator."""

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import torch

from rank_probe.guest.guard import never_raise
from rank_probe.measure.boundaries import packed
from rank_probe.process.small_files import beginning
from rank_probe.torch_hooks.private import find

# cudaStreamCaptureModeRelaxed: the calls of this thread break no capture of another one.
RELAXED: Final = 2
NOT_READY: Final = 600  # cudaErrorNotReady
# Of the CUDA runtime, in the order of the recorder in C.
FUNCTIONS: Final = (
    *("cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventQuery", "cudaEventElapsedTime"),
    *("cudaStreamIsCapturing", "cudaGetDevice", "cudaSetDevice"),
    *("cudaGetLastError", "cudaGetErrorString"),
)
# Of a process with torch and CUDA; it takes half a megabyte.
MAPS_BYTES: Final = 1 << 23


class CudaEvents:
    """Timed events on the current stream of *device*.

    Create it on the training thread once CUDA is initialised. The methods only enqueue, query and
    create; none of them waits for the device. But a full launch queue blocks a record, as it blocks
    any launch; recent torch releases drop the interpreter's lock there, so the heartbeat continues.
    """

    def __init__(self, device: int) -> None:
        self.device = device
        self._streams: dict[int, torch.cuda.Stream] = {}
        # The handle costs a fraction of torch.cuda.current_stream(), which creates an object. The
        # event is torch.cuda.Event without its Python wrappers.
        without = "Each device event costs a few microseconds more."
        self._handle = find(torch._C, "_cuda_getCurrentRawStream", without) or _handle_of_object
        self._event = find(torch._C, "_CudaEventBase", without) or torch.cuda.Event
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

    def new(self) -> torch.cuda.Event:
        """Return an event; CUDA creates it when it is first recorded."""
        event: torch.cuda.Event = self._event(enable_timing=True)
        return event

    def stream(self) -> int:
        """Return the calling thread's stream on the device.

        A thread of the autograd engine uses its caller's streams in its final callbacks. A device
        that is current only for a moment (`with torch.cuda.device`) makes no difference.
        """
        handle: int = self._handle(self.device)
        return handle

    def record(self, event: torch.cuda.Event, stream: int) -> None:
        """Record *event* on *stream*, the calling thread's."""
        if stream not in self._streams:
            self._streams[stream] = torch.cuda.current_stream(self.device)
        event.record(self._streams[stream])

    def runtime(self) -> tuple[bytes, Callable[[int], int]] | None:
        """Return the addresses of FUNCTIONS, and a function from a device to its current stream.

        None where torch has no CUDA runtime of its own, as when built for ROCm.
        """
        library = _runtime()
        if library is None or not all(hasattr(library, name) for name in FUNCTIONS):
            return None
        return addresses(library), self._handle

    def may_query(self) -> bool:
        """Let the calling thread query, whatever others capture; return whether it may.

        Do not call it on the training thread, whose device and capture mode are the user's. Both
        CUDA calls release the GIL, because they may block.
        """
        library = _runtime()
        mode = ctypes.c_int(RELAXED)
        return (
            library is not None
            # Otherwise a query would create a context on device 0.
            and library.cudaSetDevice(self.device) == 0
            and library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        )

    def is_reached(self, event: torch.cuda.Event) -> bool:
        """Return whether the device has reached *event*, for who may query.

        Event.query keeps the interpreter's lock.
        """
        library, handle = _runtime(), ctypes.c_void_p(event.cuda_event)
        return library is None or library.cudaEventQuery(handle) != NOT_READY


@cache
def _runtime() -> "ctypes.CDLL | None":
    """Return the CUDA runtime that torch has loaded; None if there is none of its own."""
    found = re.search(rb"/\S*/libcudart\S*\.so\S*", beginning("/proc/self/maps", MAPS_BYTES) or b"")
    return None if found is None else ctypes.CDLL(os.fsdecode(found[0]))


def addresses(library: ctypes.CDLL, clock: int = 0) -> bytes:
    """Return the packed addresses of FUNCTIONS in *library*, then *clock*, which only tests set."""
    functions = (ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in FUNCTIONS)
    return packed([*(function.value or 0 for function in functions), clock])


def _handle_of_object(device: int) -> int:
    handle: int = torch.cuda.current_stream(device).cuda_stream
    return handle


class CudaMemory(NamedTuple):
    """Bytes that tensors hold, and retried allocations."""

    allocated_bytes: int
    alloc_retries: int


class AllocatorMemory:
    """What torch's allocator counts for *device*, handed from the training thread to another.

    torch holds the GIL while it waits for the allocator's lock, which is held for as long as the
    device keeps an allocation waiting. Therefore only the thread that allocates reads the counts.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._is_wanted = True
        self._latest: CudaMemory | None = None

    def latest(self) -> CudaMemory | None:
        """Return what `look` found last, and let it look again; for another thread."""
        self._is_wanted = True
        return self._latest

    @never_raise
    def look(self) -> None:
        """Read the statistics if somebody wants them; training thread only.

        Reads the allocator, not the device.
        """
        if not self._is_wanted:
            return
        self._is_wanted = False
        try:
            # Like torch.cuda.memory_stats, without flattening and sorting some two hundred keys.
            stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        except RuntimeError:  # A pluggable allocator keeps no statistics.
            return
        self._latest = CudaMemory(
            allocated_bytes=stats["allocated_bytes"]["all"]["current"],
            alloc_retries=stats["num_alloc_retries"],
        )
