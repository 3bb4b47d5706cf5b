"""CUDA's events for the device clock, and what torch's allocator says of the device's memory."""

from typing import NamedTuple

import torch


class CudaEvents:
    """Timed events on the current stream of the device that the making thread uses.

    Make it on the training thread once CUDA is initialised. The methods only enqueue, ask and
    create; none of them waits for the device, save that a full launch queue blocks a record as it
    blocks any launch; there recent torch releases the interpreter's lock, so the heartbeat goes on.
    """

    def __init__(self) -> None:
        self.device = torch.cuda.current_device()
        self._streams: dict[int, torch.cuda.Stream] = {}
        self.is_capturing = torch.cuda.is_current_stream_capturing

    def new(self) -> torch.cuda.Event:
        """Return an event; CUDA makes it when it is first recorded."""
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: torch.cuda.Event) -> int:
        """Put *event* behind the work of the calling thread's stream on the device; return which.

        A thread of the autograd engine has its caller's streams in its final callbacks. A device
        that is current for a moment only (`with torch.cuda.device`) makes no difference.
        """
        # The handle costs a fraction of torch.cuda.current_stream(), which makes an object.
        handle = torch._C._cuda_getCurrentRawStream(self.device)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self.device)
        event.record(stream)
        return handle

    def follow(self) -> bool:
        """Go on with the calling thread's current device; say whether it is another one."""
        device = torch.cuda.current_device()
        if device == self.device:
            return False
        self.device = device
        self._streams.clear()
        return True


class CudaMemory(NamedTuple):
    """Bytes that tensors take and took at most, bytes reserved, and allocations tried twice."""

    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    alloc_retries: int


def memory(device: int) -> CudaMemory | None:
    """Return what this process's allocator counts on *device*; None without CUDA in use.

    Initialises nothing and asks the allocator, not the device; any thread may call it. It takes the
    allocator's lock, so it waits while another thread is inside cudaMalloc. *device* is asked for
    because a thread has a current device of its own.
    """
    if not torch.cuda.is_initialized():
        return None
    try:
        # As torch.cuda.memory_stats, less flattening and sorting some two hundred keys.
        stats = torch.cuda.memory_stats_as_nested_dict(device)
    except RuntimeError:  # A pluggable allocator keeps no statistics.
        return None
    allocated = stats["allocated_bytes"]["all"]
    return CudaMemory(
        allocated_bytes=allocated["current"],
        reserved_bytes=stats["reserved_bytes"]["all"]["current"],
        peak_bytes=allocated["peak"],
        alloc_retries=stats["num_alloc_retries"],
    )
