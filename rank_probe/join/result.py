"""The join's result for one rank: everything that this rank has caused so far."""

from collections.abc import Iterable
from operator import add
from typing import Any, Final, NamedTuple

from rank_probe.wire.stages import STAGES, SYNC


class JoinResult(NamedTuple):
    """The result for one rank since the join began; in seconds, in the order of STAGES.

    *steps* were joined, up to step number *last_step*; *groups* is the number of peer groups in the
    last merge; *stride* is that of rank 0's ring. Snapshot describes the other fields.
    """

    steps: int
    last_step: int
    groups: int
    stride: int
    joined_seconds: float
    group_wait_seconds: float
    wait_caused_seconds: tuple[float, ...]


# Columns of the message: one float64 each.
STEPS, LAST_STEP, GROUPS, STRIDE, JOINED, GROUP_WAIT, CAUSED = range(7)
COLUMNS: Final = CAUSED + len(STAGES)
RESULT_BYTES: Final = 8 * COLUMNS


def read_result(message: bytes) -> JoinResult | None:
    """Return rank 0's result for this rank; None if it is not such a message."""
    if len(message) != RESULT_BYTES:
        return None
    values = memoryview(message).cast("d").tolist()
    *counts, joined, waited = values[:CAUSED]
    steps, last_step, groups, stride = map(int, counts)
    return JoinResult(steps, last_step, groups, stride, joined, waited, tuple(values[CAUSED:]))


def added(before: JoinResult | None, now: JoinResult | None) -> JoinResult | None:
    """Return *now*, a result for the same process in a later group, with the counters *before*."""
    if before is None or now is None:
        return before if now is None else now
    return now._replace(
        groups=max(before.groups, now.groups),  # Once exposed, its counter stays exposed.
        joined_seconds=before.joined_seconds + now.joined_seconds,
        group_wait_seconds=before.group_wait_seconds + now.group_wait_seconds,
        wait_caused_seconds=tuple(map(add, before.wait_caused_seconds, now.wait_caused_seconds)),
    )


def counters(result: JoinResult | None, stages: Iterable[str]) -> dict[str, Any]:
    """Return the counters of a Snapshot; each of *stages* has its counter from the first step on.

    Otherwise its first increase would be lost.
    """
    caused = dict.fromkeys((stage for stage in stages if stage != STAGES[SYNC]), 0.0)
    if result is None:
        return {"wait_caused_seconds": caused, "joined_seconds": 0.0}
    pairs = zip(STAGES, result.wait_caused_seconds, strict=True)
    caused |= {stage: seconds for stage, seconds in pairs if seconds}
    return {
        "wait_caused_seconds": caused,
        "joined_seconds": result.joined_seconds,
        "group_wait_seconds": result.group_wait_seconds if result.groups > 1 else None,
    }
