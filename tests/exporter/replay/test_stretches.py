"""A run is judged by stretches of the same ranks, over the steps that all of them have."""

from collections.abc import Callable

import pytest

from exporter.replay.stretches import Stretch, left_out, stretches
from exporter.replay.times import timeline
from exporter.replay.traces import Run


def run(has: Callable[[int, int], bool], steps: int = 100, ranks: int = 3) -> Run:
    """Return a run with steps of 1 s, with the rows of rank and step that it *has*."""
    found = Run("j", 0)
    for step in range(steps):
        for rank in range(ranks):
            if has(rank, step):
                found.add(rank, step, step + 1.0, {"data": 1.0})
    return found


def split(one: Run) -> list[Stretch]:
    """Return its stretches."""
    return stretches(one, timeline(one, 2.0))


def shape(one: Run) -> list[tuple[tuple[int, ...], int, int]]:
    """Return the ranks, the first step and the number of steps of each stretch."""
    return [(part.ranks, part.steps[0], len(part.steps)) for part in split(one)]


def test_run_of_the_same_ranks_is_one_stretch() -> None:
    """All of its steps are whole, on the scaled clock."""
    (one,) = split(run(lambda rank, step: True))

    assert one == Stretch((0, 1, 2), list(range(100)), 100, 0.0, 200.0)


def test_ranks_that_come_or_go_begin_a_stretch() -> None:
    """Whoever lacks twenty steps in a row is away; one that comes back is there again."""
    elastic = run(
        lambda rank, step: [True, step < 50 or step >= 70, step >= 30][rank],
    )

    assert shape(elastic) == [
        ((0, 1), 0, 30),
        ((0, 1, 2), 30, 20),
        ((0, 2), 50, 20),
        ((0, 1, 2), 70, 30),
    ]
    assert [(part.begin, part.end) for part in split(elastic)] == [
        (0, 60),
        (60, 100),
        (100, 140),
        (140, 200),
    ]


@pytest.mark.parametrize(
    ("has", "whole"),
    [
        pytest.param(lambda rank, step: rank or not 40 <= step < 59, 81, id="a gap"),
        pytest.param(lambda rank, step: (7 * step + rank) % 10 > 0, 70, id="rows here and there"),
        pytest.param(lambda rank, step: 5 * rank <= step < 100 - 3 * rank, 84, id="ragged ends"),
    ],
)
def test_missing_rows_leave_steps_out(has: Callable[[int, int], bool], whole: int) -> None:
    """Fewer than twenty missing rows begin no new stretch; their steps are not whole."""
    (one,) = split(run(has))

    assert (one.ranks, len(one.steps), one.recorded) == ((0, 1, 2), whole, 100)


@pytest.mark.parametrize(
    "has",
    [
        pytest.param(lambda rank, step: rank < 2 or step % 5 == 0, id="every fifth step"),
        pytest.param(lambda rank, step: rank < 2 or 40 <= step < 55, id="a few steps"),
    ],
)
def test_rank_with_few_rows_is_left_out(has: Callable[[int, int], bool]) -> None:
    """The others are judged without it."""
    one = run(has)

    assert shape(one) == [((0, 1), 0, 100)]
    assert left_out(one, split(one)) == [2]


def test_short_run_keeps_its_ranks() -> None:
    """Of three steps two are many."""
    (one,) = split(run(lambda rank, step: rank < 2 or step < 2, steps=3))

    assert (one.ranks, one.steps) == ((0, 1, 2), [0, 1])


def test_ranks_that_share_no_step_have_no_whole_one() -> None:
    """Nothing can be said, and nothing breaks."""
    one = run(lambda rank, step: step % 3 == rank)

    assert [part.steps for part in split(one)] == []
    assert left_out(one, split(one)) == [0, 1, 2]
