"""A case that other loads have disturbed is run again, and one that is wrong is told."""

import pytest

from tests.rank_probe.launch import ATTEMPTS, Jobs, Ranks, is_late


def ranks(late_seconds: float) -> Ranks:
    """Two ranks, of which the second was late in data and the first one waited for it."""
    late, victim = {"data": late_seconds, "sync": 0.0}, {"data": 0.0, "sync": late_seconds}
    return {0: {"stage_seconds": victim}, 1: {"stage_seconds": late}}


@pytest.mark.parametrize(("case", "again"), [("first", ("first",)), ("other", ("first", "other"))])
@pytest.mark.parametrize("wrong", range(ATTEMPTS + 1))
def test_case_may_be_wrong_but_not_each_time(wrong: int, case: str, again: tuple[str, ...]) -> None:
    """Only the case in question is run again, after the first one, no more often than is said."""
    launched: list[tuple[str, ...]] = []

    def launch(*cases: str) -> dict[str, Ranks]:
        launched.append(cases)
        return {case: ranks(5.0 if len(launched) <= wrong else 1.0) for case in cases}

    jobs = Jobs(launch, "first", "other")
    if wrong < ATTEMPTS:
        jobs.check(case, is_late(1, "data", 1.0))
    else:
        with pytest.raises(AssertionError):
            jobs.check(case, is_late(1, "data", 1.0))

    assert launched == [("first", "other"), *[again] * min(wrong, ATTEMPTS - 1)]
