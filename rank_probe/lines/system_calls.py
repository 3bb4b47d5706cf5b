"""What a thread waits for, from its system call: call numbers, file descriptors, mounts.

Only the mount of a path is exposed, because paths often contain names of users and customers.
"""

import os
import platform
import re
import struct
from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple

from rank_probe.process.small_files import beginning
from rank_probe.wire.snapshot import THREAD_STATES
from rank_probe.wire.text import printable

RUNNING, CPU_QUEUE, DISK, SLEEP, LOCK, SOCKET, PIPE, GPU, BLOCKED = THREAD_STATES

MOUNT_CHARACTERS: Final = 64
LONGEST_PATH: Final = 4096
# Any user may mount a hundred thousand, and each look at another process keeps its own.
MOUNTS_BYTES: Final = 1 << 16
# A thread of `select` watches no more descriptors than this.
MOST_SELECTED: Final = 1024
# struct pollfd: the descriptor, and what it waits for.
POLLED: Final = struct.Struct("<ihh")
DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
# What glibc and Python give a futex that is only one process's.
FUTEX_PRIVATE: Final = 128
SHARED: Final = "shared"
PYTHON: Final = "interpreter"


class Wait(NamedTuple):
    """What a thread is blocked in: one of THREAD_STATES; *mount*: the disk or thread, if known.

    *link* is the pipe or socket (`pipe:[4711]`), PYTHON for the interpreter lock, or SHARED for a
    lock between processes or an unreadable wait: there, a worker may be waiting for work.
    """

    state: str
    mount: str = ""
    link: str = ""


class SystemCalls(NamedTuple):
    """The numbers of an architecture's system calls that wait, by what they wait for.

    *of_file* have a descriptor first, *of_path* a path first, *of_path_at* a directory and a path.
    """

    sleep: frozenset[int]
    close: int
    futex: int
    lock: frozenset[int]
    socket: frozenset[int]
    of_file: frozenset[int]
    of_path: frozenset[int]
    of_path_at: frozenset[int]
    poll: frozenset[int]
    select: frozenset[int]
    epoll: frozenset[int]


_X86_64: Final = SystemCalls(
    sleep=frozenset({34, 35, 230}),  # pause, nanosleep, clock_nanosleep
    close=3,
    futex=202,
    lock=frozenset({72, 73, 449, 455}),  # fcntl, flock, futex_waitv, futex_wait
    socket=frozenset({42, 43, 44, 45, 46, 47, 288, 299, 307}),  # connect to sendmmsg
    # read, write, fstat, lseek, ioctl, pread64, pwrite64, readv, writev, fsync, fdatasync,
    # ftruncate, getdents, readahead, getdents64, fadvise64, sync_file_range, fallocate, preadv,
    # pwritev, syncfs, copy_file_range, preadv2, pwritev2
    of_file=frozenset({0, 1, 5, 8, 16, 17, 18, 19, 20, 74, 75, 77, 78, 187, 217, 221})
    | frozenset({277, 285, 295, 296, 306, 326, 327, 328}),
    # open, stat, lstat, access, truncate, rename, mkdir, rmdir, unlink, readlink, statfs
    of_path=frozenset({2, 4, 6, 21, 76, 82, 83, 84, 87, 89, 137}),
    # openat, mkdirat, newfstatat, unlinkat, renameat, readlinkat, faccessat, renameat2, statx,
    # openat2, faccessat2
    of_path_at=frozenset({257, 258, 262, 263, 264, 267, 269, 316, 332, 437, 439}),
    poll=frozenset({7, 271}),
    select=frozenset({23, 270}),
    epoll=frozenset({232, 281, 441}),
)
_AARCH64: Final = SystemCalls(
    sleep=frozenset({101, 115}),
    close=57,
    futex=98,
    lock=frozenset({25, 32, 449, 455}),
    socket=frozenset({202, 203, 206, 207, 211, 212, 242, 243, 269}),
    of_file=frozenset({29, 46, 47, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 84, 213})
    | frozenset({223, 267, 285, 286, 287}),
    of_path=frozenset({43, 45}),
    of_path_at=frozenset({34, 35, 38, 48, 56, 78, 79, 276, 291, 437, 439}),
    poll=frozenset({73}),
    select=frozenset({72}),
    epoll=frozenset({22, 441}),
)
_CALLS: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine())

# What the kernel's functions that a thread waits in are called, where its call cannot be read.
_CHANNELS: Final = (
    ("futex", LOCK),
    ("nanosleep", SLEEP),
    ("pipe_", PIPE),
    ("sk_wait", SOCKET),
    ("unix_stream", SOCKET),
    ("inet_csk", SOCKET),
    ("tcp_", SOCKET),
    ("skb_wait", SOCKET),
    ("nv_", GPU),
    ("folio_wait", DISK),
    ("io_schedule", DISK),
    ("request_wait_answer", DISK),  # FUSE
    ("nfs", DISK),
    ("rpc_wait", DISK),
)


class Reader:
    """Names waits of the threads of the process *task*; for use by one thread.

    *interpreter*: the addresses of its interpreter's lock. *is_in_disk_sleep* asks whether the
    thread is in state D.
    """

    def __init__(self, task: str = "/proc/self", interpreter: Container[int] = ()) -> None:
        self._task = task
        self._interpreter = interpreter
        self._mounts: list[tuple[str, str]] | None = None

    def wait(self, call: bytes, is_in_disk_sleep: Callable[[], bool]) -> Wait | None:
        """Return what a thread waits for whose /proc/…/syscall is *call*; None if it runs."""
        number, *arguments = call.split()
        if number == b"running":
            return None
        if not arguments:
            return Wait(BLOCKED)
        found = self._found(int(number), [int(each, 16) for each in arguments])
        if found.state == BLOCKED and is_in_disk_sleep():
            return Wait(DISK)
        return found

    def _found(self, number: int, arguments: Sequence[int]) -> Wait:
        if _CALLS is None or number < 0:
            return Wait(BLOCKED)
        if number == _CALLS.futex and arguments[0] in self._interpreter:
            return Wait(LOCK, link=PYTHON)
        if number == _CALLS.futex:
            return Wait(LOCK, link="" if arguments[1] & FUTEX_PRIVATE else SHARED)
        if number in _CALLS.lock:
            return Wait(LOCK)
        if number in _CALLS.sleep:
            return Wait(SLEEP)
        if number == _CALLS.close:
            return Wait(DISK)  # Its descriptor is gone, but only a file has to be written first.
        if number in _CALLS.socket:
            return Wait(SOCKET)
        if number in _CALLS.of_file:
            return self._of_descriptor(arguments[0])
        if number in _CALLS.of_path:
            return Wait(DISK, self._mount(self._path(arguments[0])))
        if number in _CALLS.of_path_at:
            return Wait(DISK, self._mount(self._path(arguments[1])))
        return self._polled(number, arguments, _CALLS)

    def _polled(self, number: int, arguments: Sequence[int], calls: SystemCalls) -> Wait:
        if number in calls.poll:
            return self._first_of(self._polls(*arguments[:2]))
        if number in calls.select:
            return self._first_of(self._selects(*arguments[:3]))
        if number in calls.epoll:
            watched = self._watches(arguments[0])
            # An event loop that only sleeps watches the socket that wakes it up.
            return Wait(SLEEP) if len(watched) == 1 else self._first_of(watched[1:])
        return Wait(BLOCKED)

    def _first_of(self, descriptors: Sequence[int]) -> Wait:
        if not descriptors:
            return Wait(SLEEP)
        if descriptors[0] < 0:
            return Wait(BLOCKED, link=SHARED)
        first = self._of_descriptor(descriptors[0])
        return first if first.state != DISK else Wait(BLOCKED)  # A file is always ready.

    def _of_descriptor(self, descriptor: int) -> Wait:
        try:
            link = os.readlink(f"{self._task}/fd/{descriptor}")
        except OSError:
            return Wait(BLOCKED)
        if link.startswith("socket:"):
            return Wait(SOCKET, link=link)
        if link.startswith("pipe:"):
            return Wait(PIPE, link=link)
        if link.startswith(DEVICES):
            return Wait(GPU)
        if link.startswith("/") and not link.startswith("/dev/"):
            return Wait(DISK, self._mount(link))
        return Wait(BLOCKED)

    def _polls(self, pointer: int, count: int) -> list[int]:
        found = self._memory(pointer, POLLED.size * min(count, 1)) if count else b""
        return [POLLED.unpack(found)[0]] if len(found) == POLLED.size else [-1] * min(count, 1)

    def _selects(self, most: int, *sets: int) -> list[int]:
        if not 0 < most <= MOST_SELECTED:
            return [-1] if most else []
        for pointer in filter(None, sets):
            bits = int.from_bytes(self._memory(pointer, (most + 7) // 8), "little")
            if bits:
                return [(bits & -bits).bit_length() - 1]
        return []

    def _watches(self, descriptor: int) -> list[int]:
        found = beginning(f"{self._task}/fdinfo/{descriptor}") or b""
        return [int(each) for each in re.findall(rb"^tfd:\s+(\d+)\s", found, re.MULTILINE)]

    def _path(self, pointer: int) -> str:
        # Not beyond its page: the next one may not be there.
        found = self._memory(pointer, LONGEST_PATH - pointer % LONGEST_PATH)
        path = os.fsdecode(found.partition(b"\0")[0])
        try:
            return path and os.path.normpath(os.path.join(os.readlink(f"{self._task}/cwd"), path))
        except OSError:
            return ""

    def _memory(self, pointer: int, size: int) -> bytes:
        """Return the process's memory at *pointer*; empty if there is none."""
        try:
            descriptor = os.open(f"{self._task}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(descriptor, size, pointer)
        except (OSError, OverflowError):
            return b""
        finally:
            os.close(descriptor)

    def _mount(self, path: str) -> str:
        """Return the mount that *path* is on, such as `/data (nfs)`."""
        if not path:
            return ""
        if self._mounts is None:
            self._mounts = mounts(f"{self._task}/mountinfo")
        for point, name in self._mounts:
            if path == point or path.startswith(point.rstrip("/") + "/"):
                return name
        return ""


def wait_of_channel(channel: str, *, is_in_disk_sleep: bool) -> Wait | None:
    """Return what a thread waits for in the kernel function *channel*; None if it runs.

    /proc/…/wchan reads `0` for a running thread.
    """
    for part, state in _CHANNELS:
        if part in channel:
            return Wait(state)
    if is_in_disk_sleep:
        return Wait(DISK)
    return None if channel in ("", "0") else Wait(BLOCKED)


def mounts(file: str) -> list[tuple[str, str]]:
    """Return the mount points in *file* and their names for people, longest first."""
    text = (beginning(file, MOUNTS_BYTES) or b"").decode(errors="replace")
    rows = [line.split(" - ", 1) for line in text.split("\n")[:-1]]
    found: dict[str, str] = {}
    for row in rows:
        if len(row) == 2:
            point = _unescaped(row[0].split()[4])
            kind = row[1].split()[0]
            found[point] = (
                f"{end_of(point, MOUNT_CHARACTERS)} ({kind})"  # A later mount hides an earlier one.
            )
    return sorted(found.items(), key=lambda each: -len(each[0]))


def _unescaped(point: str) -> str:
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(escaped, plain)
    return point


def end_of(text: str, most: int) -> str:
    """Return the end of *text*, which says most, without what cannot be printed."""
    text = printable(text)
    return text if len(text) <= most else "…" + text[1 - most :]
