"""The steps of a trace are placed on one clock, and cut into stretches of the same ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rankskew.replay.traces import (
    Run,
    TraceStretch,
    has_sync,
    left_out,
    read_traces,
    stretches,
    timeline,
)

HEADER = "job_id,rank,peer_group,step,time_s,data_s,sync_s"


def run(path: Path, *times: int, sync: str = "1.5") -> Run:
    """Return a run of two ranks with steps of 2 s at *times*."""
    rows = [
        f"j,{rank},a,{step},{time},0.5,{sync}"
        for step, time in enumerate(times)
        for rank in range(2)
    ]
    (path / "a.csv").write_text("\n".join([HEADER, *rows, ""]))
    (found,) = read_traces([path])
    return found


@pytest.mark.parametrize(
    ("times", "scale", "ended", "origin"),
    [
        ((2, 12), 1.0, [2, 12], 0),
        # A first step that cannot have ended by its time_s began then; the run begins with it.
        ((0, 10), 1.0, [2, 12], 0),
        ((99, 109), 1.0, [2, 12], 97),
        # Ten times slower is ten times later; the origin is unscaled.
        ((99, 109), 10.0, [20, 120], 97),
        # Where all rows have one time_s, the steps follow each other.
        ((0, 0, 0), 1.0, [2, 4, 6], 0),
    ],
)
def test_steps_are_placed_on_one_clock(
    tmp_path: Path, times: tuple[int, ...], scale: float, ended: list[float], origin: float
) -> None:
    line = timeline(run(tmp_path, *times), scale)

    assert [list(of_rank.values()) for of_rank in line.ends.values()] == [ended, ended]
    assert (line.seconds, line.origin_seconds) == (ended[-1], origin)


def test_zeros_everywhere_are_no_measured_wait(tmp_path: Path) -> None:
    """A single wait above 0 shows that waits were measured."""
    for sync, measured in (("0", False), ("", False), ("1.5", True)):
        assert has_sync(run(tmp_path, 2, 4, sync=sync)) is measured


# ---- Stretches ---------------------------------------------------------------------------------


def rows(has: Callable[[int, int], bool], steps: int = 100, ranks: int = 3) -> Run:
    """Return a run with steps of 1 s, with the rows of rank and step that it *has*."""
    found = Run("j", 0)
    for step in range(steps):
        for rank in range(ranks):
            if has(rank, step):
                found.add(rank, step, step + 1.0, {"data": 1.0})
    return found


def split(one: Run) -> list[TraceStretch]:
    return stretches(one, timeline(one, 2.0))


def shape(one: Run) -> list[tuple[tuple[int, ...], int, int]]:
    """Return the ranks, the first step and the number of steps of each stretch."""
    return [(part.ranks, part.steps[0], len(part.steps)) for part in split(one)]


def test_ranks_that_come_or_go_begin_a_stretch() -> None:
    """Whoever lacks twenty steps in a row is away; one that comes back is there again."""
    elastic = rows(lambda rank, step: [True, step < 50 or step >= 70, step >= 30][rank])

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
    ("has", "steps", "whole"),
    [
        pytest.param(lambda rank, step: True, 100, 100, id="all"),
        pytest.param(lambda rank, step: rank or not 40 <= step < 59, 100, 81, id="a gap"),
        pytest.param(lambda rank, step: (7 * step + rank) % 10 > 0, 100, 70, id="here and there"),
        pytest.param(lambda rank, step: 5 * rank <= step < 100 - 3 * rank, 100, 84, id="ragged"),
        # Of three steps two are many.
        pytest.param(lambda rank, step: rank < 2 or step < 2, 3, 2, id="short"),
    ],
)
def test_missing_rows_leave_steps_out(
    has: Callable[[int, int], bool], steps: int, whole: int
) -> None:
    """Fewer than twenty missing rows begin no new stretch; their steps are not whole."""
    (one,) = split(rows(has, steps))

    assert (one.ranks, len(one.steps)) == ((0, 1, 2), whole)
    assert (one.begin, one.end) == (0.0, 2.0 * steps)


def test_ranks_that_share_no_step_have_no_whole_one() -> None:
    """Nothing can be said, and nothing breaks."""
    one = rows(lambda rank, step: step % 3 == rank)

    assert [part.steps for part in split(one)] == []
    assert left_out(one, split(one)) == [0, 1, 2]
