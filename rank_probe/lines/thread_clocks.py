"""Looks at a thread of this process from outside: its clocks, and its current system call.

The looking thread holds the interpreter lock and must not release it during a look. `os.pread`
would release it, and a busy thread gives it back only 5 ms later. Quick reads therefore go through
ctypes, which keeps the lock.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from rank_probe.lines.system_calls import Reader, Wait, wait_of_channel

BYTES: Final = 512
# A clock id combines a thread id with these kernel flags: per thread, CPU time.
PER_THREAD_CPU: Final = 4 | 2
# Looking at this many threads takes 0.15 ms per sample.
MOST_THREADS: Final = 64


class ThreadLook(NamedTuple):
    """A thread at one moment; times in nanoseconds.

    *cpu* is its time on CPUs, *queue* its completed waits for a CPU while ready to run. *own_queue*
    is the same for the looking thread. *call* is its /proc/…/syscall, empty if unreadable. *turns*
    counts how often it got a CPU. *is_on_cpu*: its CPU clock advanced during the look.
    """

    at: int
    cpu: int
    queue: int
    own_queue: int
    call: bytes
    turns: int = 0
    is_on_cpu: bool = False


class ThreadEnded(Exception):
    """The thread has ended."""


class Files:
    """Open files that are read repeatedly without releasing the interpreter lock."""

    def __init__(self) -> None:
        libc = ctypes.PyDLL(None)
        self._pread = libc.pread
        self._pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
        self._pread.restype = ctypes.c_ssize_t
        self._buffer = ctypes.create_string_buffer(BYTES)
        self._open: list[int] = []

    def open(self, path: str) -> Callable[[], bytes]:
        """Return a function that reads *path*, or returns empty bytes if it cannot be read."""
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
        """Close all files; later reads return empty bytes."""
        while self._open:
            os.close(self._open.pop())


class WatchedThread:
    """The thread with number *tid*, looked at by the calling thread."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self._reader = Reader(interpreter=addresses())
        self._files = Files()
        task = f"/proc/self/task/{tid}"
        self._schedstat = self._files.open(f"{task}/schedstat")
        self._syscall = self._files.open(f"{task}/syscall")
        self._stat = self._files.open(f"{task}/stat")
        self._wchan = self._files.open(f"{task}/wchan")
        own = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._own_schedstat = self._files.open(own)

    def begin(self) -> ThreadLook:
        """Look, reading the clocks last: the measured interval starts there."""
        call, own_queue, (queue, turns) = self._syscall(), self._own_queue(), self._scheduled()
        return ThreadLook(time.perf_counter_ns(), cpu_of(self.tid), queue, own_queue, call, turns)

    def end(self) -> ThreadLook:
        """Look, reading the call first, before the thread blocks on us, then the clocks."""
        call, at, cpu = self._syscall(), time.perf_counter_ns(), cpu_of(self.tid)
        (queue, turns), own_queue = self._scheduled(), self._own_queue()
        is_on_cpu = cpu_of(self.tid) > cpu
        return ThreadLook(at, cpu, queue, own_queue, call, turns, is_on_cpu)

    def wait(self, call: bytes) -> Wait | None:
        """Return what the thread waits for in *call*; None if it is running or ready to run."""
        if call:
            return self._reader.wait(call, self._is_in_disk_sleep)
        channel = self._wchan().decode(errors="replace")
        return wait_of_channel(channel, is_in_disk_sleep=self._is_in_disk_sleep())

    def close(self) -> None:
        """Close the thread's files."""
        self._files.close()

    def _scheduled(self) -> tuple[int, int]:
        return scheduled(self._schedstat())

    def _own_queue(self) -> int:
        return scheduled(self._own_schedstat())[0]

    def _is_in_disk_sleep(self) -> bool:
        return self._stat().rpartition(b")")[2].split()[:1] == [b"D"]


class Other(NamedTuple):
    """Another thread: the nanoseconds it *ran*, and its *place* as people read it."""

    ran: int
    place: str


class OtherThreads:
    """The CPU time of this process's other Python threads; for use by one looking thread.

    *place* returns a thread's name and current line, as people read them.
    """

    def __init__(self, place: Callable[[threading.Thread], str]) -> None:
        self._place = place
        self._at = 0
        self._last: dict[threading.Thread, int] = {}
        self._ran: dict[threading.Thread, int] = {}

    def look(self, tid: int) -> None:
        """Read the clocks of all but the thread *tid*."""
        before, self._at, self._last = self._last, time.perf_counter_ns(), _clocks(tid)
        self._ran = {each: cpu - before.get(each, 0) for each, cpu in self._last.items()}

    def busiest(self) -> Other:
        """Return the thread that ran longest between the last two looks.

        The caller has held the interpreter lock since the last look. A thread that ran since then,
        such as one in NumPy, does not need the lock and is left out. So is the caller.
        """
        half, now = (time.perf_counter_ns() - self._at) / 2, _clocks(0)
        waiting = [each for each, cpu in self._last.items() if now.get(each, 0) - cpu < half]
        most = max(waiting, key=lambda each: self._ran[each], default=None)
        return Other(0, "") if most is None else Other(self._ran[most], self._place(most))


def _clocks(but: int) -> dict[threading.Thread, int]:
    """Return the CPU nanoseconds of each Python thread except the one with id *but*."""
    found = {}
    for each in threading.enumerate()[:MOST_THREADS]:
        if each.native_id and each.native_id != but:
            with suppress(ThreadEnded):
                found[each] = cpu_of(each.native_id)
    return found


def cpu_of(tid: int) -> int:
    """Return the CPU nanoseconds of the thread *tid*. Raises ThreadEnded."""
    try:
        return time.clock_gettime_ns(~tid << 3 | PER_THREAD_CPU)
    except OSError as error:
        raise ThreadEnded from error


def addresses() -> range:
    """Return the addresses of this interpreter's state, including its lock; empty if unknown."""
    process, symbol = ctypes.PyDLL(None), ctypes.POINTER(ctypes.c_uint64)()
    found = (ctypes.c_void_p * 4)(), ctypes.byref(symbol), 1  # RTLD_DL_SYMENT
    try:
        runtime = ctypes.c_char.in_dll(process, "_PyRuntime")
        process.dladdr1(ctypes.byref(runtime), *found)
        at = ctypes.addressof(runtime)
        return range(at, at + symbol[2])  # The size is the third 64-bit word of an ELF symbol.
    except (AttributeError, ValueError):  # Not glibc, or no symbol table.
        return range(0)


def scheduled(schedstat: bytes) -> tuple[int, int]:
    """Return the nanoseconds waited for a CPU in *schedstat*, and how often the thread got one.

    Both are zero if unknown.
    """
    fields = schedstat.split()
    return (int(fields[1]), int(fields[2])) if len(fields) == 3 else (0, 0)
