"""What a rank offers to the join: a ring of its latest steps, and the message with them."""

import hashlib
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import STAGES

# The most steps offered per round; a faster loop offers a sample.
STEPS_A_ROUND: Final = 32
# With fewer steps the sample doubles: not at exactly half of the above, or it would flap.
FEW_STEPS_A_ROUND: Final = 12
# In rounds: a step is offered until every rank has posted it and rank 0 has looked once more. While
# rank 0 does not look, because its thread waits for the interpreter, MOST_ROUNDS applies.
ROUNDS, MOST_ROUNDS = 2.5, 30.0
# Steps offered however old they are: ranks may notice the end of a step up to one step apart.
LAST_STEPS: Final = 8
RING: Final = 96

# Magic (it includes the version), world size, digests of the peer group and of the node; all are 32
# or 64 bit integers.
HEAD: Final = struct.Struct("<iiqq")
MAGIC: Final = 0x524B5302
# Step number, then microseconds per stage.
ROW: Final = struct.Struct(f"<{1 + len(STAGES)}i")
EMPTY_ROW: Final = bytes(ROW.size)
# Messages have few different lengths, so that many can be read at a time.
ROWS_MULTIPLE: Final = 8
LARGEST: Final = 2**31 - 1

# In periods: a round up to AS_PLANNED is as planned; a longer one counts up to LONGEST_ROUND.
AS_PLANNED: Final = 1.5
LONGEST_ROUND: Final = 10.0
ROUNDS_REMEMBERED: Final = 4

_MASK: Final = 2**32 - 1


class Offer(NamedTuple):
    """An offered step: its number, when it was offered (seconds of the ring's clock), its row."""

    step: int
    offered_at: float
    row: bytes


def is_sampled(step: int, stride: int) -> bool:
    """Whether *step* is in a sample of one in *stride*, a power of two.

    The samples are nested, and the same on every rank. They are random with respect to periodic
    events: what happens every 40th step is neither always in nor always out. The mixing is that of
    MurmurHash3 (fmix32).
    """
    mixed = step & _MASK
    mixed = (mixed ^ (mixed >> 16)) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ (mixed >> 13)) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed * stride <= _MASK


def digest(name: str) -> int:
    """Return a signed 64-bit digest of *name*."""
    hashed = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "little", signed=True)


class Pace:
    """How long a round takes, this rank's or rank 0's, whichever is longer; for one thread.

    If training keeps the interpreter for tens of milliseconds at a time, each call of a round waits
    as long. Rank 0's round, which has the most calls, then takes seconds.
    """

    def __init__(self, period_seconds: float) -> None:
        self._period = period_seconds
        self._began_at: float | None = None
        self._told_at: float | None = None
        self._lengths: deque[float] = deque([period_seconds], maxlen=2 * ROUNDS_REMEMBERED)

    def begin_round(self, now: float) -> None:
        """Record that a round of this rank begins."""
        self._began_at = self._ended(self._began_at, now)

    def hear_rank_zero(self, now: float) -> None:
        """Record that rank 0 has published something new."""
        self._told_at = self._ended(self._told_at, now)

    @property
    def seconds(self) -> float:
        """Return the longest of the last rounds, or the period if that is about as long."""
        longest = max(self._lengths)
        return longest if longest > AS_PLANNED * self._period else self._period

    def _ended(self, since: float | None, now: float) -> float:
        if since is not None:
            self._lengths.append(min(now - since, LONGEST_ROUND * self._period))
        return now


class StepRing:
    """The steps of the last rounds; for one thread."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._taken_at: float | None = None
        self._is_told = False
        self.stride = 1
        self.merged = 0
        self.offers: list[Offer] = []

    def take(self, vectors: Sequence[StepVector], now: float) -> list[int]:
        """Take the steps since the last round; return the numbers of those that are offered.

        The first round's steps must be those of about one round.
        """
        self._follow_pace(vectors, now)
        offered = [
            Offer(vector.step, now, _row(vector))
            for vector in vectors
            if vector.step <= LARGEST and is_sampled(vector.step, self.stride)
        ]
        self.offers += offered
        waiting = [each for each in self._of_rounds(MOST_ROUNDS, now) if each.step > self.merged]
        self.offers = max(self._of_rounds(ROUNDS, now), waiting, key=len)
        stride = self.stride
        while len(self.offers) > RING:  # Sample over the whole time: do not drop the oldest.
            stride *= 2
            self.offers = [each for each in self.offers if is_sampled(each.step, stride)]
        return [offer.step for offer in offered]

    def oldest(self, now: float) -> int:
        """Return the oldest step that a rank which keeps up still offers; 0 if there is none."""
        return next((each.step for each in self._of_rounds(ROUNDS, now)), 0)

    def _of_rounds(self, rounds: float, now: float) -> list[Offer]:
        """Return the offers of so many rounds, and the last ones however old they are."""
        since = now - rounds * self._pace.seconds
        old = [each for each in self.offers[:-LAST_STEPS] if each.offered_at >= since]
        return [*old, *self.offers[-LAST_STEPS:]]

    def message(self, world_size: int, group: int, node: int) -> bytes:
        """Return the message: a head, empty rows, the steps in ascending order.

        *group* and *node* are digests.
        """
        rows = [offer.row for offer in self.offers]
        empty = EMPTY_ROW * (-len(rows) % ROWS_MULTIPLE)
        return b"".join([HEAD.pack(MAGIC, world_size, group, node), empty, *rows])

    def follow(self, stride: int) -> None:
        """Sample one step in *stride*, as rank 0 does, instead of choosing a stride.

        Ranks that choose for themselves may settle on different strides, each of them stable.
        """
        self._is_told = True
        self.stride = stride

    def _follow_pace(self, vectors: Sequence[StepVector], now: float) -> None:
        """Choose the stride from the steps since the last round; all ranks have the same pace.

        If this thread has waited for the interpreter, there are the steps of more than one round:
        the time that they took then counts, instead of the time between the rounds.
        """
        before, self._taken_at = self._taken_at, now
        round_seconds = self._pace.seconds
        elapsed = round_seconds if before is None else now - before
        if self._is_told or elapsed <= 0 or not vectors:  # A pause is no slow step.
            return
        took = sum(sum(vector.nanoseconds) for vector in vectors) / 1e9
        a_round = len(vectors) * round_seconds / max(elapsed, took)
        while a_round > STEPS_A_ROUND * self.stride:
            self.stride *= 2
        while self.stride > 1 and a_round < FEW_STEPS_A_ROUND * self.stride:
            self.stride //= 2


def newest_step(message: bytes) -> int:
    """Return the number of the last step in a StepRing's *message*; 0 if there is none."""
    if len(message) < HEAD.size + ROW.size or HEAD.unpack_from(message)[0] != MAGIC:
        return 0
    step: int = ROW.unpack_from(message, len(message) - ROW.size)[0]
    return step


def _row(vector: StepVector) -> bytes:
    return ROW.pack(vector.step, *(min(each // 1000, LARGEST) for each in vector.nanoseconds))
