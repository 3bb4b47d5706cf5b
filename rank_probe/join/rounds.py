"""One round of the join: post, merge and judge if this is rank 0, read."""

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rank_probe.guest.yielding import give_way
from rank_probe.join.figures import OwnFigures
from rank_probe.join.result import JoinResult, read_result
from rank_probe.join.ring import ROUNDS, Pace, StepRing, digest, is_sampled, newest_step
from rank_probe.join.store import (
    BATCH,
    PAUSE_SECONDS,
    VERDICT_KEY,
    Lives,
    PlaceInJob,
    Store,
    batches,
    facts_key,
    figures_key,
    group_key,
    own_arithmetic,
    present,
    result_key,
    steps_key,
)
from rank_probe.judge.verdict import Verdict
from rank_probe.measure.steps import StepVector, Vectors
from rank_probe.process.facts import message
from rank_probe.process.identity import Identity
from rank_probe.wire.snapshot import AsJson

WINDOW_SECONDS: Final = 60.0
# Posting, merging and reading back a step takes up to a round each; after this it is late.
LATE_ROUNDS: Final = 4
# Ranks are at most one step apart: some may not have seen the end of that step or the next yet.
ALWAYS_PENDING: Final = 2
if TYPE_CHECKING:
    from rank_probe.join.align import Aligned  # These modules import torch.
    from rank_probe.join.merge import Merger
    from rank_probe.join.peers import PeerFacts, PeerFigures

# Every so many rounds, rank 0 leaves out the ranks that have not posted, such as an evaluator, and
# those that have posted nothing new while it stepped on. It takes back ranks that step again.
PATIENT_ROUNDS: Final = 10


class JoinCoverage:
    """The share of the last minute's offered steps that was joined, for one thread.

    A step counts once it is due: a later step was joined, or it is LATE_ROUNDS old and not one of
    the last ALWAYS_PENDING. If no step is due, as with steps longer than a minute, the last share
    stays.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._pending: deque[tuple[int, float]] = deque()
        self._due = 0
        self._has_begun = False
        self._history: deque[tuple[float, int, int]] = deque([(0.0, 0, 0)])
        self.ratio: float | None = None

    def offer(self, steps: Iterable[int], now: float) -> None:
        """Record that *steps* are offered from *now* on, in seconds of one clock."""
        self._pending.extend((step, now) for step in steps)

    def withdraw(self, offered: Collection[int]) -> None:
        """Stop expecting steps that are not *offered*: their neighbours stand for them."""
        self._pending = deque(each for each in self._pending if each[0] in offered)

    def sample(self, stride: int) -> None:
        """Stop expecting steps outside the sample of one in *stride*."""
        self._pending = deque(each for each in self._pending if is_sampled(each[0], stride))

    def joined(self, steps: int, last_step: int, now: float) -> None:
        """Record that *steps* were joined so far, up to step number *last_step*."""
        pending = self._pending
        if steps and not self._has_begun:
            # Steps offered while waiting for ranks that take no part were not missed.
            self._has_begun = True
            while pending and now - pending[0][1] > ROUNDS * self._pace.seconds:
                pending.popleft()
            self._due, self._history = 0, deque([(0.0, 0, 0)])
        while pending and (pending[0][0] <= last_step or self._is_lost(now)):
            pending.popleft()
            self._due += 1
        history = self._history
        while len(history) > 1 and history[1][0] <= now - WINDOW_SECONDS:
            history.popleft()
        _, due_before, joined_before = history[0]
        if self._due > due_before:
            self.ratio = min((steps - joined_before) / (self._due - due_before), 1.0)
        if self._due > history[-1][1]:
            history.append((now, self._due, steps))

    def _is_lost(self, now: float) -> bool:
        is_old = now - self._pending[0][1] > LATE_ROUNDS * self._pace.seconds
        return is_old and len(self._pending) > ALWAYS_PENDING


class Rounds:
    """The repeated work of the join's thread; *result* and *verdict* are the last ones read.

    *verdict* is in the format of judge.verdict, read at *verdict_at* by the rounds' clock.

    *kept* are the steps of a rank that had counted *steps_before* when the group was formed. Each
    group numbers its steps from 1, so that ranks which are new in it have the same numbers. *work*
    counts the tokens or samples that this rank was given. The thread calls *facts*, which has the
    WHEREABOUTS of process.facts under `at`.
    """

    def __init__(
        self,
        store: Store,
        place: PlaceInJob,
        kept: Vectors,
        who: Callable[[], Identity | None],
        stop: threading.Event,
        steps_before: int = 0,
        work: Callable[[], float] = float,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._place = place
        self._work = work
        self._kept = kept
        self._who = who
        self._stop = stop
        self._steps_before = steps_before
        # A rank from an earlier group may never step in this one: see PATIENT_ROUNDS.
        self._takes_part = not steps_before
        self._lives = Lives(store, place.rank, place.world_size, stop)
        self._keys = store
        self._pace = Pace(place.period_seconds)
        self._ring = StepRing(self._pace)
        self._node = digest(os.uname().nodename)
        self._facts, self._facts_message = facts, b""
        self._group = ""
        self._rank_zero: RankZero | None = None
        self._result_message = self._verdict_message = b""
        self.coverage = JoinCoverage(self._pace)
        self.figures = OwnFigures(store, place.rank)
        self.result: JoinResult | None = None
        self.verdict: dict[str, Any] | None = None
        self.verdict_at = 0.0

    def enter(self) -> None:
        """Enter the life of the group that rank 0 began last, if any; rank 0 begins a new one."""
        if self._lives.enter():
            self._keys, self._group, self._facts_message = self._lives.keys, "", b""
            self.figures.move(self._keys)
            if self._place.rank == 0:
                self._rank_zero = RankZero(self._keys, self._place, self._stop)

    def run(self, now: float) -> None:
        """Post, merge if this is rank 0, and read; raises RuntimeError if the store fails."""
        me = self._who()
        if me is None:
            return
        self._pace.begin_round(now)
        vectors = self._numbered(self._kept.take())
        give_way()
        self.coverage.offer(self._ring.take(vectors, now), now)
        offered = [offer.step for offer in self._ring.offers]
        self.coverage.withdraw(frozenset(offered))
        give_way()
        self._takes_part = self._takes_part or bool(offered)
        if self._lives.life is None:
            self.enter()
        if self._lives.life is None or not self._takes_part:
            return
        self.figures.post(me.peer_group, now)  # Before its steps: rank 0 looks for both then.
        give_way()
        self._post(me.peer_group)
        give_way()
        if self._rank_zero is not None:
            oldest = self._ring.oldest(now)
            self._rank_zero.run(offered, self._ring.stride, now, self._work(), oldest)
            if "stage" in self._facts().get("at", {}):  # It stands still, so the job does too.
                self._rank_zero.look(now)
            give_way()
        if not self._read(now):
            self.enter()  # If this life is over, nobody merges in it any more.
        give_way()
        self.figures.read(me.peer_group, self.verdict)

    def take_back(self) -> None:
        """Delete this rank's keys; rank 0 also deletes those that it wrote for ranks that left."""
        if self._rank_zero is not None:
            self._rank_zero.take_back()
        self._lives.take_back()

    def _numbered(self, vectors: Sequence[StepVector]) -> Sequence[StepVector]:
        before = self._steps_before
        if not before:
            return vectors
        return [each._replace(step=each.step - before) for each in vectors if each.step > before]

    def _post(self, group: str) -> None:
        if group != self._group:
            self._keys.set(group_key(digest(group)), group.encode())
            self._group = group
            give_way()
        if (facts := message(self._facts())) != self._facts_message:
            self._keys.set(facts_key(self._place.rank), facts)
            self._facts_message = facts
            give_way()
        steps = self._ring.message(self._place.world_size, digest(group), self._node)
        give_way()
        self._keys.set(steps_key(self._place.rank), steps)

    def _read(self, now: float) -> bool:
        """Read rank 0's result and verdict; return whether the result is new."""
        keys = [result_key(self._place.rank), VERDICT_KEY]
        is_news = False
        if self._keys.check(keys):
            give_way()
            result, verdict = self._keys.multi_get(keys)
            give_way()
            # Keys that rank 0 has deleted since are read as empty: its life is over.
            is_news = result not in (b"", self._result_message)
            self._result_message = result
            self.result = read_result(result) or self.result
            give_way()
            if verdict not in (b"", self._verdict_message):
                self._verdict_message, before = verdict, self.verdict
                self.verdict = said = AsJson(verdict)
                # Rank 0 repeats the verdict while a job stands still, which makes it no newer.
                if (before or {}).get("step") != said.get("step"):
                    self.verdict_at = now
                give_way()
        if is_news:
            self._pace.hear_rank_zero(now)
        merged = self.result
        if merged is not None and self._place.rank != 0:
            if merged.stride > self._ring.stride:
                self.coverage.sample(merged.stride)
            self._ring.follow(merged.stride)
        steps, last_step = (0, 0) if merged is None else (merged.steps, merged.last_step)
        self._ring.merged = last_step
        self.coverage.joined(steps, last_step, now)
        return is_news


class RankZero:
    """Rank 0's part: reads what the ranks have posted, and publishes the results."""

    def __init__(self, store: Store, place: PlaceInJob, stop: threading.Event) -> None:
        self._store = store
        self._place = place
        self._stop = stop
        self._ranks: Sequence[int] = range(place.world_size)
        self._rounds = 0
        self._has_merged = False
        self._newest: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._merger: Merger | None = None  # Set together with the next two.
        self._peer_facts: PeerFacts
        self._peer_figures: PeerFigures
        self._told: tuple[Verdict, Sequence[int]] | None = None  # and the ranks that it is on

    def run(
        self, offered: Sequence[int], stride: int, now: float, work: float, oldest: int = 0
    ) -> None:
        """Merge and judge those of the *offered* steps that all ranks have posted.

        *work* counts what this rank was given so far. Ranks that step offer steps from *oldest* on.
        """
        merger = self._merger or self._begin()
        self._rounds += 1
        if self._rounds % PATIENT_ROUNDS == 0:
            self._ranks = self._stepping(oldest) or self._ranks
            self._has_merged = False
        if not (candidates := merger.totals.unmerged(offered)):
            return
        aligned = self._aligned(candidates)
        if aligned is None:
            return
        give_way()
        self._learn_names(aligned)
        self._peer_facts.learn(aligned.ranks)
        with own_arithmetic():
            verdict = merger.judge(aligned, self._names, now, work)
            give_way()
            messages = merger.totals.messages(stride)
        verdict = self._peer_facts.placed(verdict)
        self._has_merged, self._told = True, (verdict, aligned.ranks)
        give_way()
        said = json.dumps(verdict.to_json(), separators=(",", ":")).encode()
        give_way()
        # Before the verdict: the ranks that it names read both.
        self._peer_figures.share(verdict, self._ranks, now)
        self._tell(messages, said)

    def look(self, now: float) -> None:
        """Publish the rank that the job waits for while no step ends."""
        if self._told is not None:
            verdict, ranks = self._told
            said = replace(verdict, suspect=self._peer_facts.suspect(ranks, now))
            self._store.set(VERDICT_KEY, json.dumps(said.to_json()).encode())

    def take_back(self) -> None:
        """Delete the common keys, and those written for ranks that left."""
        for key in (VERDICT_KEY, *map(group_key, self._names)):
            self._store.delete_key(key)
        if self._merger is None:
            return
        self._peer_figures.take_back()
        for ranks in batches(range(self._place.world_size)):
            for rank in set(ranks) - set(present(self._store, steps_key, ranks)):
                for name in (result_key, figures_key, facts_key):
                    self._store.delete_key(name(rank))

    def _begin(self) -> "Merger":
        from rank_probe.join.charge import use_one_cpu
        from rank_probe.join.merge import Merger
        from rank_probe.join.peers import PeerFacts, PeerFigures

        use_one_cpu()  # A pool of threads would take CPUs from training.
        with own_arithmetic():
            self._peer_facts = PeerFacts(self._store)
            merger = Merger(self._place.world_size, self._peer_facts.known)
        self._peer_figures = PeerFigures(self._store, self._stop, self._pause_seconds)
        self._merger = merger
        return merger

    def _stepping(self, oldest: int) -> list[int]:
        """Return the ranks that step with this one, which offers its steps from *oldest* on.

        In a synchronous job the steps that two ranks offer overlap. If a rank's do not, and do not
        advance, nobody waits for it. While steps are merged, all known ranks still step.
        """
        everybody = batches(range(self._place.world_size))
        posted = [rank for some in everybody for rank in present(self._store, steps_key, some)]
        known = set(self._ranks)
        before, self._newest = self._newest, {}
        for ranks in batches([r for r in posted if not (self._has_merged and r in known)]):
            messages = self._store.multi_get([steps_key(rank) for rank in ranks])
            give_way()
            self._newest |= zip(ranks, map(newest_step, messages), strict=True)
            self._stop.wait(self._pause_seconds)
        gone = {
            rank
            for rank, newest in self._newest.items()
            if newest < oldest and (rank not in known or before.get(rank) == newest)
        }
        return [rank for rank in posted if rank not in gone]

    def _aligned(self, candidates: Sequence[int]) -> "Aligned | None":
        """Read what the ranks have posted; None if that leaves nothing to merge."""
        from rank_probe.join.align import Alignment

        with own_arithmetic():
            alignment = Alignment(candidates, self._ranks, self._place.world_size)
        give_way()
        for ranks in batches(self._ranks):
            keys = [steps_key(rank) for rank in ranks]
            if not self._store.check(keys):
                return None
            give_way()
            messages = self._store.multi_get(keys)
            give_way()
            with own_arithmetic():
                has_common = alignment.add(messages)
            if not has_common or self._stop.wait(self._pause_seconds):
                return None
        give_way()
        with own_arithmetic():
            return alignment.common()

    def _learn_names(self, aligned: "Aligned") -> None:
        for each in set(aligned.groups.tolist()) - self._names.keys():
            if self._store.check([group_key(each)]):
                self._names[each] = self._store.multi_get([group_key(each)])[0].decode()

    def _tell(self, messages: Sequence[bytes], verdict: bytes) -> None:
        self._store.set(VERDICT_KEY, verdict)
        give_way()
        for ranks in batches(self._ranks):
            keys = [result_key(rank) for rank in ranks]
            self._store.multi_set(keys, [messages[rank] for rank in ranks])
            self._stop.wait(self._pause_seconds)

    @property
    def _pause_seconds(self) -> float:
        return PAUSE_SECONDS if self._place.world_size > BATCH else 0.0
