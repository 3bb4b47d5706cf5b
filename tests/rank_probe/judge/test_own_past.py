"""Without measured waits, a rank that becomes slower than it was is named, from onset to end."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rank_probe.judge.judge import Judge
from rank_probe.judge.own_past import MOST_RANKS, Lasted
from rank_probe.judge.verdict import NO_SYNC, UNSYNCED, Late
from rankskew.accounting.windows import PlainReduction

More = Callable[[int, int], float]


@dataclass
class Told:
    """What was said after each step, and who was slow when, as known at the end."""

    said: list[tuple[Late, ...]]
    ended: list[Lasted]


def told(
    more: More,
    *,
    steps: int = 200,
    ranks: int = 8,
    seed: int = 0,
    noise: float = 0.02,
    step_seconds: float = 10.0,
) -> Told:
    """Judge a job after every step; *more* (rank, step) is a share of a step, in `backward`.

    The noise has heavy tails (Student's t with three degrees of freedom), and all ranks drift.
    """
    draw = random.Random(seed)
    reduction = PlainReduction(dict.fromkeys(range(ranks), "all"), {})
    judge = Judge(reduction)
    found = Told([], [])
    for step in range(steps):
        common = step_seconds * (1 + 0.2 * step / steps) * draw.gauss(1.0, 0.02)
        row = {rank: _stages(draw, noise, common, more(rank, step)) for rank in range(ranks)}
        at = (step + 1) * step_seconds
        leader = reduction.add(step, row, at)
        verdict = judge.judge(reduction.mark(at), [leader], step=step)
        found.said.append(verdict.late)
    assert verdict.reason == NO_SYNC
    found.ended = list(judge.ended)
    return found


def _stages(draw: random.Random, noise: float, common: float, more: float) -> dict[str, float]:
    heavy = draw.gauss(0, 1) / max(draw.gammavariate(1.5, 2 / 3), 0.05) ** 0.5
    own = common * max(0.5, 1 + noise * heavy)
    return {"forward": 0.4 * own, "backward": (0.6 + more) * own}


@pytest.mark.parametrize("seed", range(3))
def test_bump_of_ten_steps_is_told_with_onset_and_end(seed: int) -> None:
    """15 % for ten steps, in the middle of a run whose ranks always differ by a tenth."""
    found = told(
        lambda rank, step: 0.02 * rank + 0.15 * (rank == 3 and 100 <= step < 110), seed=seed
    )
    (one,) = found.ended
    names = {(each.rank, each.stage, each.kind) for late in found.said for each in late}

    assert names == {(3, "backward", UNSYNCED)}
    assert (one.onset, one.end) == pytest.approx((1000, 1100), abs=20)
    assert max(len(late) for late in found.said[:105]) == 0
    assert not found.said[-1]


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_were_always_apart_stay_quiet(seed: int) -> None:
    """One rank is always a tenth slower, all drift, and noise has heavy tails."""
    found = told(lambda rank, step: 0.1 * (rank == 2), seed=seed, steps=300)

    assert not any(found.said)
    assert not found.ended


def test_largest_lasting_excess_is_first() -> None:
    """9 % for hours comes before 20 % for minutes."""
    found = told(
        lambda rank, step: (
            0.09 * (rank == 5 and step >= 150) + 0.2 * (rank == 1 and 580 <= step < 599)
        ),
        steps=600,
    )

    assert [late.rank for late in found.said[-1]] == [5, 1]
    assert found.said[-1][0].ratio == pytest.approx(0.09, abs=0.02)
    assert all(late.has_risen for late in found.said[-1])
    assert found.said[-1][0].since_seconds == pytest.approx(4500, abs=50)


def test_rank_that_was_always_far_apart_is_told() -> None:
    """Half as slow again as all others, from the first step on, is no matter of habit."""
    found = told(lambda rank, step: 0.5 * (rank == 4), steps=60)

    assert [(late.rank, late.kind) for late in found.said[-1]] == [(4, UNSYNCED)]
    assert not found.said[-1][0].has_risen
    assert found.said[-1][0].ratio == pytest.approx(0.5, abs=0.05)


def test_ranks_that_all_differ_far_are_told_of_nobody() -> None:
    """Workers on shares of GPUs: the slowest is far from the fastest, but not from the next."""
    assert not any(told(lambda rank, step: 0.1 * rank, steps=60).said)


def test_short_gap_does_not_make_two_of_one() -> None:
    found = told(lambda rank, step: 0.2 * (rank == 6 and 100 <= step < 250 and step not in GAP))

    assert not found.ended
    assert {round(200 - late.since_seconds / 10) for late in found.said[-1]} == {100}


GAP = range(150, 160)


def test_second_time_is_compared_with_the_healthy_past() -> None:
    """What a rank needed while it was slow does not count as its past."""
    found = told(
        lambda rank, step: 0.2 * (rank == 6 and (60 <= step < 160 or 300 <= step < 320)), steps=400
    )

    assert [each.rank for each in found.ended] == [6, 6]
    assert [each.onset for each in found.ended] == pytest.approx([600, 3000], abs=20)


def test_slower_one_of_two_is_told() -> None:
    found = told(lambda rank, step: 0.1 * rank + 0.2 * (rank == 0 and step >= 100), ranks=2)

    assert [late.rank for late in found.said[-1]] == [0]


@pytest.mark.parametrize(("more_ranks", "named"), [(0, {3}), (1, set())])
def test_job_of_too_many_ranks_is_not_looked_at(more_ranks: int, named: set[int]) -> None:
    """Rank 0 would spend too much time on it."""
    late = told(
        lambda rank, step: 0.5 * (rank == 3 and step >= 30),
        steps=45,
        ranks=MOST_RANKS + more_ranks,
    )

    assert {each.rank for each in late.said[-1]} == named
