"""Which ranks of a job get a row, and in which order."""

from collections.abc import Sequence
from typing import Final

from exporter.live.states import HUNG
from rankskew.top.model import Rank

MOST_RANKS: Final = 20


def worth_a_row(ranks: Sequence[Rank], state: str) -> tuple[list[Rank], int]:
    """Return the ranks to show, and how many others there are.

    Late ranks come first, then those that hold the job up. The others follow by number, or by their
    own time per step, the slowest first, if there are too many for all.
    """
    is_huge = len(ranks) > MOST_RANKS

    def place(rank: Rank) -> tuple[int, float, float, int]:
        lost = rank.late.gpus_lost if rank.late else 0.0
        slow = (rank.own_seconds or 0.0) if is_huge else 0.0
        return _group(rank, state), -lost, -slow, rank.rank

    ordered = sorted(ranks, key=place)
    return ordered[:MOST_RANKS], max(0, len(ordered) - MOST_RANKS)


def holds_up(rank: Rank, state: str) -> bool:
    """Say whether a hung job may wait for *rank*; one that never stepped may be an evaluator."""
    if state != HUNG or rank.finished or rank.last_step_age_seconds is None:
        return False
    return rank.silent or rank.stage != "sync"


def _group(rank: Rank, state: str) -> int:
    if rank.late is not None and rank.late.is_called_late:
        return 0
    if holds_up(rank, state) or rank.silent:
        return 1
    return 2 if rank.late is not None else 3
