"""Which ranks have a row, and in which order."""

from exporter.live.sentences import LateView
from rankskew.top.model import Rank, worth_a_row


def late(rank: int, gpus_lost: float, kind: str = "persistent") -> Rank:
    lateness = LateView(rank, "all", "data", kind, 0.3, gpus_lost, 60.0, True)
    return Rank(rank, late=lateness, stage="sync")


def order(state: str, *ranks: Rank) -> list[int]:
    return [rank.rank for rank in worth_a_row(ranks, state)]


def test_late_ranks_come_first_and_the_costliest_of_them() -> None:
    """Then those that are silent, then those that are only a little late, then the others.

    What nobody can price is late all the same.
    """
    silent = Rank(3, silent=True)
    ranks = [Rank(0), late(1, 0.0), late(2, 0.1, "mild"), silent, late(4, 0.5), late(5, 1.5)]

    assert order("straggler", *ranks) == [5, 4, 1, 3, 2, 0]


def test_hung_job_shows_first_whom_it_waits_for() -> None:
    """A rank outside sync holds up the others; one that never stepped may be an evaluator."""
    waiting = [Rank(rank, stage="sync", last_step_age_seconds=60.0) for rank in (0, 1)]
    evaluator = Rank(2, stage="eval")
    stuck = Rank(3, stage="backward", last_step_age_seconds=60.0)

    assert order("hung", *waiting, evaluator, stuck) == [3, 0, 1, 2]
