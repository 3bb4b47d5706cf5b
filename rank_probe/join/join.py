"""The per-step join: late ranks and their cost, found through the job's own store.

Each rank overwrites one key with its latest steps every second or so. Rank 0 merges the steps that
all ranks have posted and judges them. It overwrites one key per rank with the rank's result, and
one key with the verdict on the job; each rank reads both. This needs no collective and no clock,
and the store does not grow.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rank_probe.guest.guard import never_raise
from rank_probe.join.figures import known_figures
from rank_probe.join.result import counters
from rank_probe.join.rounds import PlaceInJob, Rounds
from rank_probe.join.store import Store
from rank_probe.measure.steps import Steps
from rank_probe.process.identity import Identity

log = logging.getLogger("rank_probe")

# Of the length of a round.
JITTER: Final = 0.9, 1.1
# Share of the steps that must be joined for a valid verdict; the rules use the same threshold.
ENOUGH_COVERAGE: Final = 0.9
# Much longer than any round takes: the store has stopped answering.
STUCK_SECONDS: Final = 60.0
# If the store answers while the interpreter ends, a thread inside the store aborts the process (a
# C++ frame cannot be unwound), so closing waits a little for a slow store.
STOP_SECONDS: Final = 5.0


class Join:
    """This rank's part in the join, in its own daemon thread; at most one per process.

    It ends for good, quietly, at the first failure of the store. Then the counters stand still, the
    coverage is 0 and there is no verdict. *on_news* is called when the verdict names other ranks.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        on_news: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_news = on_news
        self._now = now
        self._is_over = environment.get("RANK_PROBE_JOIN") == "0"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rounds: Rounds | None = None
        self._beat = now()
        self._random = random.Random()  # The global one is the user's.
        self._told: dict[str, float] = {}

    def begin(
        self,
        connect: Callable[[], Store],
        place: PlaceInJob,
        steps: Steps,
        who: Callable[[], Identity | None],
    ) -> None:
        """Start to join *steps*, through the store that *connect* opens; for the training thread.

        *who* returns the current peer group.
        """
        if self._is_over or self._thread is not None:
            return
        run = never_raise(self._run)
        self._thread = threading.Thread(
            target=run, args=(connect, place, steps, who), name="rank_probe_join", daemon=True
        )
        self._thread.start()

    def give_up(self) -> None:
        """Stop joining: from now on this rank's step numbers differ from its peers'."""
        self._is_over = True
        self._stop.set()

    def stop(self) -> None:
        """End, and delete this rank's keys from the store; waits a little for a slow store."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def tell(self, figures: object) -> None:
        """Tell the peers this rank's *figures*, as its exporter said them; None: nothing new."""
        if figures is None or not (told := known_figures(figures)):
            return
        self._told = told
        if (rounds := self._rounds) is not None:
            rounds.figures.tell(told)

    def snapshot_fields(self, stages: Iterable[str]) -> dict[str, Any]:
        """Return the join's fields of a Snapshot; empty if no join has begun.

        *stages* are those that occurred on this rank. Each has its counters from the first step on;
        otherwise their first increase would be lost.
        """
        rounds = self._rounds
        if rounds is None:
            return {}
        own = counters(rounds.result, stages)
        now = self._now()
        if self._is_stuck(now):
            return {**own, "join_coverage": 0.0}
        return {
            **own,
            "join_coverage": rounds.coverage.ratio,
            "verdict": rounds.verdict,
            "verdict_age_seconds": None if rounds.verdict is None else now - rounds.verdict_at,
            "peer_figures": rounds.figures.peers,
        }

    @property
    def verdict(self) -> dict[str, Any] | None:
        """Return the last verdict, in the format of judge.verdict; None without a join."""
        rounds = self._rounds
        return None if rounds is None or self._is_stuck(self._now()) else rounds.verdict

    @property
    def speaks(self) -> bool:
        """Whether its verdict rests on nearly all steps."""
        rounds = self._rounds
        if self._is_over or rounds is None or rounds.verdict is None:
            return False
        return (rounds.coverage.ratio or 0.0) >= ENOUGH_COVERAGE

    def _is_stuck(self, now: float) -> bool:
        return self._is_over or now - self._beat > STUCK_SECONDS

    def _run(
        self,
        connect: Callable[[], Store],
        place: PlaceInJob,
        steps: Steps,
        who: Callable[[], Identity | None],
    ) -> None:
        try:
            store = connect()
            kept = steps.keep()  # Not earlier: the first round should have one period's steps.
            try:
                self._take_rounds(Rounds(store, place, kept, who, self._stop), place)
            finally:
                steps.forget(kept)
        except RuntimeError as error:
            log.info("rank_probe stops joining steps: %s", error)
        finally:
            if not self._stop.is_set():
                self._is_over = True

    def _take_rounds(self, rounds: "Rounds", place: PlaceInJob) -> None:
        rounds.take_back()  # The keys of a killed attempt may still be there.
        self._beat = self._now()
        self._rounds = rounds
        if self._told:
            rounds.figures.tell(self._told)
        while not self._stop.wait(place.period_seconds * self._random.uniform(*JITTER)):
            before = _named(rounds.verdict)
            rounds.run(self._now())
            self._beat = self._now()
            if _named(rounds.verdict) != before:
                self._on_news()
        rounds.take_back()


def _named(verdict: Mapping[str, Any] | None) -> list[tuple[int, str]]:
    return [] if verdict is None else [(each["rank"], each["kind"]) for each in verdict["late"]]
