"""How long the probe holds up a training thread: in its hooks, and by holding the interpreter.

Both are measured on the thread itself. A pause counts for as long as the thread in the hook and
the probe's own threads used a CPU in it. For the rest of it somebody else ran: a machine with two
cores for a whole stack does that all the time. Its length by the clock is kept beside it.
Nor does it count when Python collects garbage, which the probe's threads leave none of.

A virtual machine that is stopped for milliseconds counts them as used by whoever ran. An empty loop
that uses a CPU for as long as the probe did shows how often that happens.
"""

import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any, Final

import rank_probe
from benchmarks.faults.ranks.garbage import Garbage

SOURCE: Final = Path(__file__).parent / "nap.c"
PROBE: Final = str(Path(rank_probe.__file__).parent)
# What the hooks call for the training's sake, by a part of the path of its file.
TRAINING: Final = ("/torch/", "/benchmarks/")
# The same of functions in C: a wait in a collective.
TRAINING_IN_C: Final = frozenset({"wait"})


def build(directory: Path) -> Path:
    """Compile the sleep into *directory* and return the library; needs gcc."""
    library = directory / "nap.so"
    command = [
        "gcc",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True, slots=True)
class Paused:
    """The longest pause of a while: what the probe used of a CPU in it, its length by the clock.

    *all_seconds* is what the probe used in all its pauses.
    """

    seconds: float
    held_up_seconds: float
    all_seconds: float


class Pauses:
    """Keeps the longest pause of the calling thread, in nanoseconds, until take().

    *ours* is what the probe used of a CPU in one, *elapsed* its length by the clock.
    """

    def __init__(self) -> None:
        self._ours = self._elapsed = self._all = 0
        self._began = self._used = 0
        thread = threading.current_thread()
        self._garbage = Garbage(lambda each: each is thread or is_ours(each))

    def begin(self) -> None:
        """Enter a pause."""
        self._used = _used_in_a_hook()
        self._began = time.perf_counter_ns()

    def end(self) -> None:
        """Leave it."""
        self.add(self._began, time.perf_counter_ns(), _used_in_a_hook() - self._used)

    def add(self, began: int, ended: int, used: int) -> None:
        """Add a pause between two times of the clock, in which the probe *used* a CPU."""
        self._elapsed = max(self._elapsed, ended - began)
        ours = min(ended - began, max(0, used - self._garbage.used(began, ended)))
        self._ours = max(self._ours, ours)
        self._all += ours

    def take(self) -> Paused:
        """Return the longest of *ours* and *elapsed* since the last call."""
        taken = Paused(self._ours / 1e9, self._elapsed / 1e9, self._all / 1e9)
        self._ours = self._elapsed = self._all = 0
        return taken


class Hooks:
    """A profile function that times the probe's own Python code on the calling thread.

    What the code calls of torch's or the script's is training, not a pause.
    """

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._stack: list[bool] = []  # whether each call on the thread's stack is ours
        self._is_ours = False
        self._by_file: dict[str, bool | None] = {}

    def watch(self) -> None:
        """Time the calling thread from now on."""
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._enter(self._of_file(frame.f_code.co_filename))
        elif event == "c_call":
            self._enter(False if _is_training(argument) else None)
        elif self._stack:
            self._become(self._stack.pop())

    def _enter(self, ours: bool | None) -> None:
        self._stack.append(self._is_ours)
        if ours is not None:
            self._become(ours)

    def _become(self, ours: bool) -> None:
        if ours is not self._is_ours:
            self._is_ours = ours
            (self._pauses.begin if ours else self._pauses.end)()

    def _of_file(self, name: str) -> bool | None:
        """Return whose the code of file *name* is; None: its caller's."""
        if name not in self._by_file:
            is_training = any(part in name for part in TRAINING)
            self._by_file[name] = True if name.startswith(PROBE) else False if is_training else None
        return self._by_file[name]


def _is_training(function: BuiltinFunctionType) -> bool:
    return function.__name__ in TRAINING_IN_C


def naps(library: Path, pauses: Pauses) -> Callable[[float], None]:
    """Return a sleep that adds to *pauses* how long its end waited for the interpreter."""
    nap = ctypes.CDLL(str(library)).nap
    nap.argtypes = [
        *(ctypes.c_double, ctypes.c_void_p, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_void_p),
    ]
    nap.restype = None
    # PyDLL: a function that keeps the interpreter.
    sum_of = ctypes.PyDLL(str(library)).sum_of
    sum_of.argtypes = [ctypes.c_void_p, ctypes.c_int]
    sum_of.restype = ctypes.c_int64
    woke, used = ctypes.c_int64(), ctypes.c_int64()
    places = ctypes.addressof(woke), ctypes.addressof(used)

    def sleep(seconds: float) -> None:
        clocks = _clocks_of_the_probe()
        nap(seconds, clocks, len(clocks), *places)
        now = time.perf_counter_ns()
        pauses.add(woke.value, now, sum_of(clocks, len(clocks)) - used.value)

    return sleep


def empty_loop(library: Path) -> Callable[[float], float]:
    """Return a function that uses a CPU for seconds, and returns the longest pause in them."""
    spin = ctypes.CDLL(str(library)).spin
    spin.argtypes, spin.restype = (ctypes.c_int64,), ctypes.c_int64
    return lambda seconds: float(spin(round(seconds * 1e9))) / 1e9


def is_ours(thread: threading.Thread) -> bool:
    """Return whether *thread* is the probe's own."""
    return thread.name.startswith("rank_probe")


def _used_in_a_hook() -> int:
    """Return what this thread and the probe's own used of a CPU: one may wait for another."""
    return time.thread_time_ns() + sum(map(_read, _clocks_of_the_probe()))


def _read(clock: int) -> int:
    """Return nanoseconds; that of a thread that has ended counts nothing."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return 0


def _clocks_of_the_probe() -> "ctypes.Array[ctypes.c_int]":
    """Return the clocks of the CPU time of the probe's own threads."""
    clocks = [
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if is_ours(thread) and thread.ident is not None
    ]
    return (ctypes.c_int * len(clocks))(*clocks)
