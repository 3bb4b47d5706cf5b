"""How long a main thread runs, and waits for a CPU, beside what its peers do."""

from typing import Final

from exporter.causes.case import Case
from exporter.causes.model import CPU_QUEUE
from exporter.causes.row import EVERY, Row
from exporter.causes.shares import Share

RUNS: Final = "main_running_ratio"
RUN_QUEUE: Final = "main_run_queue_ratio"
# Where everybody waits for a CPU, ranks differ by a tenth or two; half as much again is more.
CLEARLY: Final = 1.5
# On a healthy node threads wait for a CPU for a hundredth of the time.
LEAST_QUEUE: Final = 0.02


def usual_wait(case: Case) -> float:
    """Return how long its peers wait for a CPU for each second that they run.

    Peers that run for moments only wait at random: their wait says nothing of who runs for long.
    """
    waits, runs = case.lower(RUN_QUEUE), case.lower(RUNS)
    return waits / runs if waits and runs and waits >= LEAST_QUEUE else 0.0


def lacks_cpu(_: Row, case: Case) -> float:
    """Return the part of the excess in which it waits for a CPU and its peers would not.

    Where CPUs are short for all, who runs more also waits more: that is not why it is late.
    """
    own, peers = case.own(RUN_QUEUE), case.lower(RUN_QUEUE)
    if own is None or peers is None or own - peers < LEAST_QUEUE or own < CLEARLY * peers:
        return 0.0
    peers = max(peers, (case.own(RUNS) or 0.0) * usual_wait(case))
    room = case.room(EVERY, frozenset({CPU_QUEUE}))
    return case.share(min(room, (own - peers) * case.excess.step))


def besides(share: Share) -> Share:
    """As *share*, which is of a state that peers may be in too: no wait for a CPU beyond theirs."""

    def rest(row: Row, case: Case) -> float:
        return min(share(row, case), 1 - lacks_cpu(row, case))

    return rest
