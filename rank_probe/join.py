"""The per-step join: what each rank made the others wait, through the store of the job itself.

Each rank overwrites one key with its latest steps every few seconds; rank 0 merges the steps that
all ranks have posted, and overwrites a key for each rank with what that rank has caused; each rank
reads its own. No collective, no clock, and a store that does not grow.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from rank_probe.guard import never_raise
from rank_probe.identity import Identity
from rank_probe.join_coverage import Coverage
from rank_probe.join_result import Result, read_result
from rank_probe.join_ring import Ring
from rank_probe.stages import STAGES, SYNC
from rank_probe.steps import Steps, Vectors

if TYPE_CHECKING:
    from rank_probe.join_merge import Alignment, Totals  # Its module imports torch.

log = logging.getLogger("rank_probe")

# Seconds from a rank's round to its next, by the largest number of ranks.
PERIODS: tuple[tuple[int, float], ...] = ((256, 2.0), (4_096, 5.0), (2**31, 10.0))
JITTER: Final = 0.1
# Keys in one call to the store, and a pause between such calls: what rank 0's other threads wait
# for the interpreter meanwhile makes no single step late.
BATCH: Final = 256
PAUSE_SECONDS: Final = 0.002
# Much longer than any round takes: the store has stopped answering.
STUCK_SECONDS: Final = 60.0
# A thread that is within the store when the interpreter ends aborts the process if the store
# answers just then (a C++ frame cannot be unwound), so a slow store is waited for a little.
STOP_SECONDS: Final = 5.0


class Store(Protocol):
    """What the join needs of a torch.distributed store; every failure is a RuntimeError."""

    def set(self, key: str, value: bytes) -> None:
        """Write *key*."""

    def check(self, keys: Sequence[str]) -> bool:
        """Say whether all *keys* are there."""

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read *keys*, which must be there."""

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
        """Write *keys*."""

    def delete_key(self, key: str) -> bool:
        """Delete *key* if it is there."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank among those of its process group, in how long a round is."""

    rank: int
    world_size: int

    @property
    def period_seconds(self) -> float:
        """Return how long a round takes: a store serves that many ranks in a fraction of it."""
        return next(seconds for ranks, seconds in PERIODS if self.world_size <= ranks)


class Join:
    """This rank's part in the join, in a daemon thread of its own; at most one for a process.

    It ends for good, quietly, at the first failure of the store; the counters then stand still and
    the coverage is 0.
    """

    def __init__(
        self, environment: Mapping[str, str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._now = now
        self._is_over = environment.get("RANK_PROBE_JOIN") == "0"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rounds: Rounds | None = None
        self._beat = now()
        self._random = random.Random()  # The other one is the user's.

    def begin(
        self,
        connect: Callable[[], Store],
        place: Place,
        steps: Steps,
        who: Callable[[], Identity | None],
    ) -> None:
        """Start to join *steps*, through the store that *connect* opens; for the training thread.

        *who* tells the peer group of the moment.
        """
        if self._is_over or self._thread is not None:
            return
        run = never_raise(self._run)
        self._thread = threading.Thread(
            target=run, args=(connect, place, steps, who), name="rank_probe_join", daemon=True
        )
        self._thread.start()

    def give_up(self) -> None:
        """Join no more: from here on this rank's steps have other numbers than its peers'."""
        self._is_over = True
        self._stop.set()

    def stop(self) -> None:
        """End, and take this rank's keys out of the store; waits for a store that is slow."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def snapshot_fields(self, stages: Iterable[str]) -> dict[str, Any]:
        """Return the join's fields of a Snapshot; none where no join has begun.

        *stages* are those that occurred on this rank: each of them has its counters from the first
        on, or nobody could tell their first increase.
        """
        rounds = self._rounds
        if rounds is None:
            return {}
        coverage = rounds.coverage.ratio
        if self._is_over or self._now() - self._beat > STUCK_SECONDS:
            coverage = 0.0
        return {**_counters(rounds.result, stages), "join_coverage": coverage}

    def _run(
        self,
        connect: Callable[[], Store],
        place: Place,
        steps: Steps,
        who: Callable[[], Identity | None],
    ) -> None:
        try:
            store = connect()
            kept = steps.keep()  # Not before: the first round is to have a period's steps.
            try:
                self._take_rounds(Rounds(store, place, kept, who, self._stop), place)
            finally:
                steps.forget(kept)
        except RuntimeError as error:
            log.info("rank_probe joins no more steps: %s", error)
        finally:
            if not self._stop.is_set():
                self._is_over = True

    def _take_rounds(self, rounds: "Rounds", place: Place) -> None:
        rounds.take_back()  # The keys of an attempt that was killed may be there still.
        self._beat = self._now()
        self._rounds = rounds
        while not self._stop.wait(self._until_next_seconds(place)):
            rounds.run(self._now())
            self._beat = self._now()
        rounds.take_back()

    def _until_next_seconds(self, place: Place) -> float:
        return place.period_seconds * self._random.uniform(1 - JITTER, 1 + JITTER)


class Rounds:
    """What the thread does every few seconds; *result* is what was read last."""

    def __init__(
        self,
        store: Store,
        place: Place,
        kept: Vectors,
        who: Callable[[], Identity | None],
        stop: threading.Event,
    ) -> None:
        self._store = store
        self._place = place
        self._kept = kept
        self._who = who
        self._stop = stop
        self._ring = Ring(place.period_seconds)
        self._totals: Totals | None = None
        self.coverage = Coverage(place.period_seconds)
        self.result: Result | None = None

    def run(self, now: float) -> None:
        """Post, merge if this is rank 0, and read; raises RuntimeError where the store fails."""
        me = self._who()
        if me is None:
            return
        self.coverage.offer(self._ring.take(self._kept.take(), now), now)
        message = self._ring.message(self._place.world_size, me.peer_group)
        self._store.set(_steps_key(self._place.rank), message)
        if self._place.rank == 0:
            self._merge()
        self._read(now)

    def take_back(self) -> None:
        """Delete this rank's keys; rank 0 also those that it wrote for ranks that had gone."""
        own = self._place.rank
        self._store.delete_key(_steps_key(own))
        self._store.delete_key(_result_key(own))
        if self._totals is None:
            return
        for ranks in self._batches():
            if not self._store.check([_steps_key(rank) for rank in ranks]):
                for rank in ranks:
                    if not self._store.check([_steps_key(rank)]):
                        self._store.delete_key(_result_key(rank))

    def _merge(self) -> None:
        from rank_probe.join_merge import Alignment, Totals, use_one_cpu

        if self._totals is None:
            use_one_cpu()  # A team of threads would take training its CPUs.
            with _own_arithmetic():
                self._totals = Totals(self._place.world_size)
        candidates = self._totals.unmerged([offer.step for offer in self._ring.offers])
        if not candidates:
            return
        with _own_arithmetic():
            alignment = Alignment(candidates, self._place.world_size)
        if self._align(alignment):
            with _own_arithmetic():
                self._totals.add(*alignment.common())
                messages = self._totals.messages(self._ring.stride)
            self._tell(messages)

    def _align(self, alignment: "Alignment") -> bool:
        """Read what all ranks have posted; False where that leaves nothing to merge."""
        for ranks in self._batches():
            keys = [_steps_key(rank) for rank in ranks]
            if not self._store.check(keys):
                return False
            messages = self._store.multi_get(keys)
            with _own_arithmetic():
                has_common = alignment.add(ranks[0], messages)
            if not has_common or self._stop.wait(self._pause_seconds):
                return False
        return True

    def _tell(self, messages: Sequence[bytes]) -> None:
        for ranks in self._batches():
            keys = [_result_key(rank) for rank in ranks]
            self._store.multi_set(keys, [messages[rank] for rank in ranks])
            self._stop.wait(self._pause_seconds)

    def _batches(self) -> Iterator[range]:
        """Yield the ranks, a batch at a time."""
        for first in range(0, self._place.world_size, BATCH):
            yield range(first, min(first + BATCH, self._place.world_size))

    @property
    def _pause_seconds(self) -> float:
        return PAUSE_SECONDS if self._place.world_size > BATCH else 0.0

    def _read(self, now: float) -> None:
        keys = [_result_key(self._place.rank)]
        if self._store.check(keys):
            self.result = read_result(self._store.multi_get(keys)[0]) or self.result
        result = self.result
        if result is not None and self._place.rank != 0:
            self._ring.follow(result.stride)
        self.coverage.joined(result.steps if result else 0, result.last_step if result else 0, now)


@contextmanager
def _own_arithmetic() -> Iterator[None]:
    """Raise ArithmeticError for torch's RuntimeErrors, which are the store's failures elsewhere."""
    try:
        yield
    except RuntimeError as error:
        raise ArithmeticError(f"the join cannot add up its steps: {error}") from error


def _counters(result: "Result | None", stages: Iterable[str]) -> dict[str, Any]:
    paced = dict.fromkeys((stage for stage in stages if stage != STAGES[SYNC]), 0)
    caused = dict.fromkeys(paced, 0.0)
    if result is None:
        return {"paced_steps": paced, "wait_caused_seconds": caused, "joined_seconds": 0.0}
    for stage, count, seconds in zip(
        STAGES, result.paced_steps, result.wait_caused_seconds, strict=True
    ):
        if count or seconds:
            paced[stage], caused[stage] = count, seconds
    return {
        "paced_steps": paced,
        "wait_caused_seconds": caused,
        "joined_seconds": result.joined_seconds,
        "group_wait_seconds": result.group_wait_seconds if result.groups > 1 else None,
    }


def _steps_key(rank: int) -> str:
    return f"steps/{rank}"


def _result_key(rank: int) -> str:
    return f"result/{rank}"
