"""How long a main thread runs, waits for a CPU, and does neither, beside what its peers do."""

from collections.abc import Callable
from typing import Final, NamedTuple

from exporter.causes.case import Case
from exporter.causes.excess import STEP
from exporter.causes.model import CPU_QUEUE, RUNNING
from exporter.causes.row import OWN_STAGES, CauseRow
from exporter.causes.shares import work

RUNS: Final = "main_running_ratio"
RUN_QUEUE: Final = "main_run_queue_ratio"
# Where everybody waits for a CPU, ranks differ by a tenth or two; half as much again is more.
CLEARLY: Final = 1.5
# On a healthy node threads wait for a CPU for a hundredth of the time.
LEAST_QUEUE: Final = 0.02


class Thread(NamedTuple):
    """Seconds a step in which a main thread *runs*, and is *blocked* instead of working."""

    runs: float
    blocked: float


def more_than_peers(case: Case) -> Thread | None:
    """Return what the rank's thread certainly does beyond its peers'; None if that is not known.

    The kernel counts this time, so unlike samples it measures the excess. Peers that run for longer
    than they are busy also run while they wait for other ranks, as NCCL does; their CPU time then
    says nothing about their work. Nor does their wait for a CPU: much of it follows a wait for
    other ranks, so their work may have been blocked for all but the time that they ran.
    The counters may be a few seconds old. If a thread was seen on a CPU or waiting for one for
    longer than they say, it was blocked for less.
    """
    runs, waits = _a_step(case.own, RUNS), _a_step(case.own, RUN_QUEUE)
    peers_run, peers_are_busy = _a_step(case.lower, RUNS), sum(case.excess.peers.values())
    if runs is None or waits is None or peers_run is None or peers_run > peers_are_busy:
        return None
    seen = case.seconds(frozenset({RUNNING, CPU_QUEUE}))
    blocked = sum(case.excess.own.values()) - max(runs + waits, seen)
    return Thread(max(runs - peers_run, 0.0), max(blocked - (peers_are_busy - peers_run), 0.0))


def _a_step(figure: Callable[[str], float | None], ratio: str) -> float | None:
    """Return a *ratio* of the time, looked up with *figure*, in seconds a step; None if unknown."""
    share, step = figure(ratio), figure(STEP)
    return None if share is None or step is None else share * step


def is_blocked(row: CauseRow, case: Case) -> float:
    """Return the share of the excess spent in the row's states, in which a thread needs no CPU.

    It is at most the time for which the thread is blocked longer than its peers.
    """
    more = more_than_peers(case)
    if more is None:
        return case.share(case.spent_for_certain(row.stages, row.states))
    return case.share(min(case.spent(row.stages, row.states), more.blocked))


def runs_longer(row: CauseRow, case: Case) -> float:
    """Return the share of the excess in which its thread runs longer than its peers' threads.

    If it runs clearly more, its wait for a CPU counts too, as far as peers would wait as long.
    Where CPUs are short for all, that wait is many times the little by which ranks differ.
    """
    part = work(case, row, RUNNING, CPU_QUEUE, usual_wait(case))
    more = more_than_peers(case)
    if more is None:
        return part * case.share(case.spent_beyond(row.stages, row.states))
    longer = more.runs * (1 + (usual_wait(case) if _runs_clearly_more(case) else 0.0))
    return case.share(min(part * case.spent(row.stages, row.states), longer))


def _runs_clearly_more(case: Case) -> bool:
    own, peers = _a_step(case.own, RUNS), _a_step(case.lower, RUNS)
    return own is not None and peers is not None and own >= CLEARLY * peers


def usual_wait(case: Case) -> float:
    """Return how long its peers wait for a CPU for each second that they run.

    Peers that run only for moments wait at random, which says nothing about longer runs.
    """
    waits, runs = case.lower(RUN_QUEUE), case.lower(RUNS)
    return waits / runs if waits and runs and waits >= LEAST_QUEUE else 0.0


def lacks_cpu(_: CauseRow, case: Case) -> float:
    """Return the part of the excess in which it waits for a CPU and its peers would not.

    Where CPUs are short for all, a rank that runs more also waits more; that wait is left out.
    """
    own, peers = case.own(RUN_QUEUE), case.lower(RUN_QUEUE)
    if own is None or peers is None or own - peers < LEAST_QUEUE or own < CLEARLY * peers:
        return 0.0
    peers = max(peers, (case.own(RUNS) or 0.0) * usual_wait(case))
    room = case.room(OWN_STAGES, frozenset({CPU_QUEUE}))
    return case.share(min(room, (own - peers) * case.excess.step))
