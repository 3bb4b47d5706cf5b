"""Which late ranks are late enough for an alert; the rules say the same, in late.yaml."""

from collections.abc import Callable, Sequence
from typing import Final

from rank_probe.judge.verdict import DUTY, NODE, PAUSES, PERSISTENT, Late

# A rank that costs this share of the costliest one, or less, is not named: fix that one first.
LEAST_SHARE: Final = 0.1


def late_enough(
    late: Sequence[Late], world_size: int, threshold: Callable[[str], float]
) -> frozenset[int]:
    """Return the ranks that are late enough, if together they cost enough of *world_size* GPUs.

    Duties that ranks do for all may cost more; beyond that, these ranks are late as well.
    """
    costliest = max((each.gpus_lost for each in late), default=0.0)
    worth = [
        each
        for each in late
        if each.gpus_lost > LEAST_SHARE * costliest and _is_late(each, threshold("skew_ratio"))
    ]
    duties = [each for each in late if each.kind == DUTY]
    told: set[int] = set()
    for those, least in ((worth, "gpus_lost_ratio"), (duties, "gpus_lost_page_ratio")):
        if sum(each.gpus_lost for each in those) >= threshold(least) * world_size:
            told.update(each.rank for each in those if each.gpus_lost > LEAST_SHARE * costliest)
    return frozenset(told)


def _is_late(late: Late, skew_ratio: float) -> bool:
    # The mean of a rank that pauses says little. Those of the other kinds may not be late at all.
    return late.kind == PAUSES or (late.kind in (PERSISTENT, NODE) and late.ratio > skew_ratio)
