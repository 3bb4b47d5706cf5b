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
from contextlib import suppress
from typing import Final, NamedTuple

from rank_probe.lines.system_calls import Reader, Wait, wait_of_channel

BYTES: Final = 512
# A clock's number has the thread in it; this is the kernel's, for what one thread spent on CPUs.
PER_THREAD_CPU: Final = 4 | 2
# To look at so many takes 0.15 ms a sample.
MOST_THREADS: Final = 64


class ThreadLook(NamedTuple):
    """A thread at one moment; nanoseconds.

    *cpu* is its time on CPUs, *queue* its time ready without one, as far as that has ended; *own
    queue* that of the thread that looks. *call* is its /proc/…/syscall; empty if that cannot be
    read. *turns*: how often it was given a CPU. *is_on_cpu*: its clock ran while it was looked at.
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
        """Look, with the clocks last: what follows belongs to what is measured."""
        call, own_queue, (queue, turns) = self._syscall(), self._own_queue(), self._scheduled()
        return ThreadLook(time.perf_counter_ns(), cpu_of(self.tid), queue, own_queue, call, turns)

    def end(self) -> ThreadLook:
        """Look, with the clocks early; before them the call, which waits for us from now on."""
        call, at, cpu = self._syscall(), time.perf_counter_ns(), cpu_of(self.tid)
        (queue, turns), own_queue = self._scheduled(), self._own_queue()
        is_on_cpu = cpu_of(self.tid) > cpu
        return ThreadLook(at, cpu, queue, own_queue, call, turns, is_on_cpu)

    def wait(self, call: bytes) -> Wait | None:
        """Return what it waits for if it is in *call*; None if it runs or is ready to."""
        if call:
            return self._reader.wait(call, self._is_in_disk_sleep)
        channel = self._wchan().decode(errors="replace")
        return wait_of_channel(channel, is_in_disk_sleep=self._is_in_disk_sleep())

    def close(self) -> None:
        """Look no more."""
        self._files.close()

    def _scheduled(self) -> tuple[int, int]:
        return scheduled(self._schedstat())

    def _own_queue(self) -> int:
        return scheduled(self._own_schedstat())[0]

    def _is_in_disk_sleep(self) -> bool:
        return self._stat().rpartition(b")")[2].split()[:1] == [b"D"]


class Other(NamedTuple):
    """Another thread: for how many nanoseconds it *ran*, and its *place* for people."""

    ran: int
    place: str


class OtherThreads:
    """What the other Python threads of this process run; for one that looks at a thread.

    *place* returns for people which thread one is, and where.
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
        """Return the one that ran longest between the last two looks.

        The caller has had the interpreter since the last one. Who ran meanwhile needs none, such as
        a thread in NumPy, and is left out; so is the caller.
        """
        half, now = (time.perf_counter_ns() - self._at) / 2, _clocks(0)
        waiting = [each for each, cpu in self._last.items() if now.get(each, 0) - cpu < half]
        most = max(waiting, key=lambda each: self._ran[each], default=None)
        return Other(0, "") if most is None else Other(self._ran[most], self._place(most))


def _clocks(but: int) -> dict[threading.Thread, int]:
    """Return for how long each Python thread has run, without that with number *but*."""
    found = {}
    for each in threading.enumerate()[:MOST_THREADS]:
        if each.native_id and each.native_id != but:
            with suppress(ThreadEnded):
                found[each] = cpu_of(each.native_id)
    return found


def cpu_of(tid: int) -> int:
    """Return for how many nanoseconds the thread *tid* has run. Raises ThreadEnded."""
    try:
        return time.clock_gettime_ns(~tid << 3 | PER_THREAD_CPU)
    except OSError as error:
        raise ThreadEnded from error


def addresses() -> range:
    """Return where this interpreter keeps its own state, its lock among it; empty if unknown."""
    process, symbol = ctypes.PyDLL(None), ctypes.POINTER(ctypes.c_uint64)()
    found = (ctypes.c_void_p * 4)(), ctypes.byref(symbol), 1  # RTLD_DL_SYMENT
    try:
        runtime = ctypes.c_char.in_dll(process, "_PyRuntime")
        process.dladdr1(ctypes.byref(runtime), *found)
        at = ctypes.addressof(runtime)
        return range(at, at + symbol[2])  # Of an ELF symbol, the size is the third number.
    except (AttributeError, ValueError):  # Not glibc, or without names.
        return range(0)


def scheduled(schedstat: bytes) -> tuple[int, int]:
    """Return how long a thread with this *schedstat* waited for CPUs, and how often it got one.

    Zeros if unknown.
    """
    fields = schedstat.split()
    return (int(fields[1]), int(fields[2])) if len(fields) == 3 else (0, 0)
