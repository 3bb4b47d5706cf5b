"""Looks at a thread of this process from outside: its clocks, and the call that it is in.

Whoever looks holds the interpreter, and must keep it meanwhile: `os.pread` would hand it over, and
get it back from a busy thread only 5 ms later. So what is quick is read through ctypes, which keeps
it.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rank_probe.lines.system_calls import Reader, Wait, wait_of_channel

BYTES: Final = 512
# A clock's number has the thread in it; this is the kernel's, for what one thread spent on CPUs.
PER_THREAD_CPU: Final = 4 | 2


class ThreadLook(NamedTuple):
    """A thread at one moment; nanoseconds.

    *cpu* is its time on CPUs, *queue* its time ready without one, as far as that has ended; *own
    queue* that of the thread that looks. *call* is its /proc/…/syscall; empty if that cannot be
    read. *is_on_cpu*: its clock ran while it was looked at.
    """

    at: int
    cpu: int
    queue: int
    own_queue: int
    call: bytes
    is_on_cpu: bool = False


class ThreadEnded(Exception):
    """The thread has ended."""


class Files:
    """Open files that are read again and again, without letting go of the interpreter."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None)
        self._pread = libc.pread
        self._pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
        self._pread.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(BYTES)
        self._open: list[int] = []

    def open(self, path: str) -> Callable[[], bytes]:
        """Return a function that reads *path*; it returns nothing where that is not possible."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return bytes
        self._open.append(descriptor)

        def read() -> bytes:
            length = self._pread(descriptor, self._buffer, BYTES, 0)
            return self._buffer.raw[:length] if length > 0 else b""

        return read

    def close(self) -> None:
        """Close them; they read nothing then."""
        while self._open:
            os.close(self._open.pop())


class WatchedThread:
    """The thread with number *tid*, looked at by the calling thread."""

    def __init__(self, tid: int, reader: Reader) -> None:
        self._clock = ~tid << 3 | PER_THREAD_CPU
        self._reader = reader
        self._files = Files()
        task = f"/proc/self/task/{tid}"
        self._schedstat = self._files.open(f"{task}/schedstat")
        self._syscall = self._files.open(f"{task}/syscall")
        self._stat = self._files.open(f"{task}/stat")
        self._wchan = self._files.open(f"{task}/wchan")
        own = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._own_schedstat = self._files.open(own)

    def begin(self) -> ThreadLook:
        """Look, with the clocks last: what follows belongs to what is measured."""
        call, own_queue, queue = self._syscall(), queued(self._own_schedstat()), self._queued()
        return ThreadLook(time.perf_counter_ns(), self._cpu(), queue, own_queue, call)

    def end(self) -> ThreadLook:
        """Look, with the clocks early; before them the call, which waits for us from now on."""
        call, at, cpu = self._syscall(), time.perf_counter_ns(), self._cpu()
        queue, own_queue = self._queued(), queued(self._own_schedstat())
        return ThreadLook(at, cpu, queue, own_queue, call, is_on_cpu=self._cpu() > cpu)

    def wait(self, call: bytes) -> Wait | None:
        """Return what it waits for if it is in *call*; None if it runs or is ready to."""
        if call:
            return self._reader.wait(call, self._is_in_disk_sleep)
        channel = self._wchan().decode(errors="replace")
        return wait_of_channel(channel, is_in_disk_sleep=self._is_in_disk_sleep())

    def close(self) -> None:
        """Look no more."""
        self._files.close()

    def _queued(self) -> int:
        return queued(self._schedstat())

    def _cpu(self) -> int:
        try:
            return time.clock_gettime_ns(self._clock)
        except OSError as error:
            raise ThreadEnded from error

    def _is_in_disk_sleep(self) -> bool:
        return self._stat().rpartition(b")")[2].split()[:1] == [b"D"]


def queued(schedstat: bytes) -> int:
    """Return how long a thread with this *schedstat* has waited for a CPU; 0 if unknown."""
    fields = schedstat.split()
    return int(fields[1]) if len(fields) == 3 else 0
