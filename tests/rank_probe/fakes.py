"""A clock, a CUDA device (streams, events, capture), a probe of a rank, and measured links."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import get_ident

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


class DeviceError(RuntimeError):
    """What CUDA would answer to a forbidden or failed call."""


class FakeDevice:
    """A discrete simulation: each launch is done when all before it on its stream are.

    Since durations are known, so is the end of everything launched; only the host's *time* moves.
    """

    def __init__(self, time: FakeTime) -> None:
        self.time = time
        self.stream = 0  # the current one
        self._idle_at: dict[int, int] = {}  # by stream
        self._launched: list[int] = []  # when each launch is done

    def launch(self, nanoseconds: int) -> None:
        """Launch a kernel; the host is blocked while too many are waiting."""
        self.time.pass_(LAUNCH)
        if len(self._launched) >= DEPTH:
            self._wait_until(self._launched[-DEPTH])
        self._launched.append(self.append(nanoseconds))

    def append(self, nanoseconds: int) -> int:
        """Keep the current stream from going on for so long; return when that is over."""
        began = max(self.time.nanoseconds, self._idle_at.get(self.stream, 0))
        self._idle_at[self.stream] = began + nanoseconds
        return began + nanoseconds

    def item(self) -> None:
        """Block the host until the current stream has done everything."""
        self._wait_until(self._idle_at.get(self.stream, 0))

    def _wait_until(self, nanoseconds: int) -> None:
        self.time.nanoseconds = max(self.time.nanoseconds, nanoseconds)


class FakeEvent:
    """An event of one device, with CUDA's rules."""

    def __init__(self, events: "FakeEvents") -> None:
        self._events = events
        self.device: int | None = None
        self.at: int | None = None

    def query(self) -> bool:
        self._events.check("query")
        if get_ident() not in {self._events.thread, *self._events.relaxed}:
            raise DeviceError("queried on another thread: breaks a capture")
        if self.at is None:
            raise DeviceError("queried but never recorded")
        return self.at <= self._events.time.nanoseconds

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        self._events.check("elapsed_time")
        if self.at is None or end_event.at is None or self.device != end_event.device:
            raise DeviceError("not recorded, or on two devices")
        if max(self.at, end_event.at) > self._events.time.nanoseconds:
            raise DeviceError("not ready")
        return (end_event.at - self.at) / 1e6


class FakeEvents:
    """Events on the current stream of a FakeDevice; what a test sets happens next."""

    def __init__(self, device: FakeDevice) -> None:
        self.time = device.time
        self._streams = device
        self.made: list[FakeEvent] = []
        self.recorded = 0
        self.queries = 0
        self.capturing = False
        self.has_runtime = True
        self.current_device = self.device = 0
        self.failing = ""  # the call that raises from now on
        self.thread = get_ident()
        self.relaxed: set[int] = set()  # Other threads, whose queries break no capture.

    def new(self) -> FakeEvent:
        self.check("new")
        self.made.append(FakeEvent(self))
        return self.made[-1]

    def record(self, event: FakeEvent) -> int:
        self.check("record")
        if event.device not in (None, self.device):
            raise DeviceError("recorded on another device than its own")
        event.device = self.device
        event.at = self._streams.append(0)
        self.recorded += 1
        return self._streams.stream

    def is_capturing(self) -> bool:
        return self.capturing

    def follow(self) -> bool:
        moved = self.device != self.current_device
        self.device = self.current_device
        return moved

    def may_query(self) -> bool:
        if self.has_runtime:
            self.relaxed.add(get_ident())
        return self.has_runtime

    def check(self, call: str) -> None:
        """Raise if *call* is to fail, or is forbidden in a capture."""
        self.queries += call == "query"
        if self.failing == call:
            raise DeviceError("the device is lost")
        if self.capturing and get_ident() not in self.relaxed:
            raise DeviceError(f"{call}: operation not permitted when stream is capturing")


RANK_2_OF_4 = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2", "RANKSKEW_JOB_ID": "j"}


def probe_of_rank_2(*, automatic: bool = False, **environment: str) -> Probe:
    return Probe(automatic=automatic, environment=RANK_2_OF_4 | environment)


def told(probe: Probe) -> Snapshot:
    """Return what *probe* tells: there must be something."""
    snapshot = probe.snapshot()
    assert snapshot is not None
    return snapshot


def number_of_line(file: str, comment: str) -> int:
    """Return the number of the line of *file* that ends in *comment*."""
    lines = Path(file).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(comment))


LATENCY_SECONDS = 20e-6
BANDWIDTH = 10e9
# Made-up links are as fast as each other. By how much some, from sender to receiver, are slower:
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

    *slower* divides the bandwidth of links, *latency* multiplies the latency of pairs. Nodes are 10
    times further apart than ranks of one. *noise* is the standard deviation of logarithms.
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
    collectives = (
        CollectiveTime("all_reduce", 4096, 1e-3),
        CollectiveTime("all_gather", 4096, 0.5e-3),
    )
    slow = findings(slow_readings(pairs, hosts), hosts)
    return MeasuredLinks("gloo", tuple(hosts), 2**20, collectives, pairs, 0, slow)
