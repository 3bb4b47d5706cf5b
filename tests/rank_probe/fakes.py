"""A clock, a CUDA device (streams, events, capture), a probe of a rank, and measured links."""

import ctypes
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rank_probe.collectives.measure import CollectiveTime, MeasuredLinks, rounds
from rank_probe.collectives.verdict import PairTime, Ranks, findings, scope_of, slow_readings
from rank_probe.probe import Probe
from rank_probe.wire.snapshot import Snapshot


class FakeTime:
    """A clock that only moves when it is moved."""

    def __init__(self) -> None:
        self.nanoseconds = 1_000

    def __call__(self) -> int:
        return self.nanoseconds

    def pass_(self, nanoseconds: int) -> None:
        self.nanoseconds += nanoseconds


def elsewhere(*calls: Callable[[], object]) -> None:
    """Make the *calls* on another thread, and wait for them."""
    thread = threading.Thread(target=lambda: [call() for call in calls])
    thread.start()
    thread.join()


LAUNCH = 6_000  # nanoseconds of the host's time
DEPTH = 1024  # launches that a driver takes before it blocks the host


class FakeDevice:
    """A discrete simulation: each launch is done when all before it on its stream are.

    Since durations are known, so is the end of everything launched; only the host's *time* moves.
    """

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.stream = 0  # the current one
        self.idle_at: list[int] = 8 * [0]  # by stream
        self._launched: list[int] = []  # when each launch is done

    def launch(self, nanoseconds: int) -> None:
        """Launch a kernel; the host is blocked while too many are waiting."""
        self.time.pass_(LAUNCH)
        if len(self._launched) >= DEPTH:
            self._wait_until(self._launched[-DEPTH])
        self._launched.append(self.append(nanoseconds))

    def append(self, nanoseconds: int) -> int:
        """Occupy the current stream for so long; return when that ends."""
        began = max(self.time.nanoseconds, self.idle_at[self.stream])
        self.idle_at[self.stream] = began + nanoseconds
        return began + nanoseconds

    def item(self) -> None:
        """Block the host until the current stream has done everything."""
        self._wait_until(self.idle_at[self.stream])

    def _wait_until(self, nanoseconds: int) -> None:
        self.time.nanoseconds = max(self.time.nanoseconds, nanoseconds)


class Variable:
    """A variable of cudart_stub.c, or an element of an array there."""

    def __init__(self, name: str, index: int = 0) -> None:
        self._name, self._index = f"stub_{name}", index

    def _array(self, stub: Any) -> Any:
        return (ctypes.c_longlong * (self._index + 1)).in_dll(stub.library, self._name)

    def __get__(self, stub: Any, _: object) -> int:
        return int(self._array(stub)[self._index])

    def __set__(self, stub: Any, value: int) -> None:
        self._array(stub)[self._index] = value


class StubTime(FakeTime):
    """The clock of cudart_stub.c, which begins anew."""

    nanoseconds = Variable("now")

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.stub_reset()
        super().__init__()


class StubEvent(ctypes.c_void_p):
    """An event of cudart_stub.c, used as torch does."""

    events: "StubEvents"

    def query(self) -> bool:
        return self.events.call("cudaEventQuery", self) == 0

    def elapsed_time(self, end_event: "StubEvent") -> float:
        milliseconds = ctypes.c_float()
        self.events.call("cudaEventElapsedTime", ctypes.byref(milliseconds), self, end_event)
        return milliseconds.value


class StubEvents:
    """Events on the current stream of a FakeDevice; what a test sets happens next.

    With *in_python* a clock uses them from Python, otherwise a recorder in C if there is one.
    """

    made, recorded, queried = (Variable("calls", function) for function in range(3))
    capturing, current_device = Variable("capturing"), Variable("current_device")
    last_error, failing, blocked = map(Variable, ("last_error", "failing", "blocked"))

    def __init__(self, library: ctypes.CDLL, *, in_python: bool) -> None:
        self.library, self._in_python = library, in_python
        self.time = StubTime(library)
        self.streams = FakeDevice(self.time)
        self.streams.idle_at = (ctypes.c_longlong * 8).in_dll(library, "stub_idle_at")  # type: ignore[assignment]
        self.device = 0
        self.has_runtime = True

    def call(self, function: str, *arguments: object) -> int:
        """Call a *function* as torch does: on the device of the events; return 0 if it is ready."""
        current, self.current_device = self.current_device, self.device
        error: int = getattr(self.library, function)(*arguments)
        self.current_device = current
        if error not in (0, 600):  # cudaErrorNotReady
            raise RuntimeError(f"CUDA error {error}")
        return error and self.library.cudaGetLastError()

    def new(self) -> StubEvent:
        event = StubEvent()
        event.events = self
        self.call("cudaEventCreateWithFlags", ctypes.byref(event), 0)
        return event

    def stream(self) -> int:
        return self.streams.stream

    def record(self, event: StubEvent, stream: int) -> None:
        self.call("cudaEventRecord", event, ctypes.c_void_p(stream))

    def is_capturing(self) -> bool:
        return bool(self.capturing)

    def runtime(self) -> tuple[bytes, Callable[[int], int]] | None:
        from rank_probe.torch_hooks.cuda_events import addresses

        clock = ctypes.cast(self.library.stub_clock, ctypes.c_void_p).value or 0
        ours = addresses(self.library, clock), lambda _: self.streams.stream
        return None if self._in_python else ours

    def is_reached(self, event: StubEvent) -> bool:
        return event.query()

    def may_query(self) -> bool:
        mode = ctypes.c_int(2)
        self.library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        return self.has_runtime


RANK_2_OF_4 = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "RANKSKEW_JOB_ID": "j"}


def probe_of_rank_2(*, automatic: bool = False, **environment: str) -> Probe:
    return Probe(automatic=automatic, environment=RANK_2_OF_4 | environment)


def told(probe: Probe) -> Snapshot:
    """Return the snapshot of *probe*, which must have one."""
    snapshot = probe.snapshot()
    assert snapshot is not None
    return snapshot


def number_of_line(file: str, comment: str) -> int:
    """Return the number of the line of *file* that ends in *comment*."""
    lines = Path(file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(comment))


LATENCY_SECONDS = 20e-6
BANDWIDTH = 10e9
# Made-up links are equally fast, except these, from sender to receiver: how many times slower.
Slower = Mapping[Ranks, float]


def hosts(nodes: int, ranks_of_each: int) -> tuple[str, ...]:
    """Return the host of each rank: n0, n1 and so on."""
    return tuple(f"n{node}" for node in range(nodes) for _ in range(ranks_of_each))


def pair_times(
    hosts: Sequence[str],
    slower: Slower | None = None,
    latency: Slower | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> list[PairTime]:
    """Return the time of each measured pair.

    *slower* divides the bandwidth of links, *latency* multiplies the latency of pairs. Between
    nodes latency is 10 times, bandwidth a tenth. *noise* is the standard deviation of logarithms.
    """
    chance = random.Random(seed)

    def noisy(value: float) -> float:
        return value * chance.lognormvariate(0.0, noise)

    found = []
    for pair in (pair for pairs in rounds(len(hosts)) for pair in pairs):
        far = 10.0 if scope_of(pair, hosts) == "inter-node" else 1.0
        there, back = (
            noisy(BANDWIDTH / far / (slower or {}).get(link, 1.0)) for link in (pair, pair[::-1])
        )
        seconds = noisy(LATENCY_SECONDS * far * (latency or {}).get(pair, 1.0))
        found.append(PairTime(pair, seconds, there, back))
    return found


def result(pairs: Sequence[PairTime], hosts: Sequence[str]) -> MeasuredLinks:
    """Return a result with *pairs*, judged, and two collectives."""
    collectives = CollectiveTime("all_reduce", 4096, 1e-3), CollectiveTime("all_gather", 4096, 5e-4)
    slow = findings(slow_readings(pairs, hosts), hosts)
    return MeasuredLinks("gloo", tuple(hosts), 2**20, collectives, pairs, 0, slow)
