"""Finds the rank that a job waits for when it stands still; hang.yaml does so from series."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from rank_probe.wire.snapshot import Snapshot
from rank_probe.wire.stages import STAGES, SYNC

# Least time without a stage boundary (a rank) or a step (a job); for a job also in usual steps.
STANDS_SECONDS: Final = 10.0
STANDS_STEPS: Final = 10.0


class Stand(NamedTuple):
    """Where a rank is: in *stage* for *seconds*, or silent for *seconds* if *stage* is empty.

    *line* is the line of the user's code, if known.
    """

    stage: str
    seconds: float
    steps: float
    finished: bool = False
    line: str = ""

    @property
    def waits(self) -> bool:
        """Whether it waits for others."""
        return self.stage == STAGES[SYNC] and not self.finished


def stands_after(step_seconds: float) -> float:
    """Return after how long without a step a job with steps of *step_seconds* stands still."""
    return max(STANDS_SECONDS, STANDS_STEPS * step_seconds)


def standing(snapshot: Snapshot, step_seconds: float, steps_before: int) -> dict[str, Any]:
    """Return where a rank stands, as it is sent, if it has ended no step for long; else empty."""
    ended = snapshot.last_step_timestamp_seconds
    ago = 0.0 if ended is None else snapshot.heartbeat_timestamp_seconds - ended
    if snapshot.finished or ago <= stands_after(step_seconds):
        return {}
    return {
        "stage": snapshot.stage,
        "seconds": snapshot.stage_elapsed_seconds,
        "steps": snapshot.steps - steps_before,
        "line": next((each["place"] for each in snapshot.late_lines), ""),
        "state": next((each["state"] for each in snapshot.thread_states), ""),
    }


def suspects(stands: Mapping[int, Stand]) -> list[int]:
    """Return the ranks that do not wait for others, most suspect first; *stands* is by rank.

    First is the rank that stopped when the others began to wait, to within ten seconds; of several,
    the one with the fewest steps. Finished ranks are last. If all wait, the suspects are those that
    wait at another line than most: they have called another collective.
    """
    waited = max((each.seconds for each in stands.values() if each.waits), default=0.0)
    usual = most_wait_at(stands.values())
    order = {
        rank: (each.finished, abs(each.seconds - waited) // 10, each.steps)
        for rank, each in stands.items()
        if not each.waits or (usual and each.line not in (usual, ""))
    }
    return sorted(order, key=lambda rank: order[rank])


def most_wait_at(stands: Collection[Stand]) -> str:
    """Return the line at which most of *stands* wait; empty if not all wait, or it is not known."""
    lines = Counter(each.line for each in stands)
    return max(lines, key=lambda line: lines[line]) if all(each.waits for each in stands) else ""
