from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from rankskew.compare.comparison import Side
from rankskew.compare.from_trace import trace_side
from rankskew.replay.traces import Run, read_traces
from tests.exporter.recorded import record


def recorded(path: Path, **job: Any) -> Run:
    return read_traces([record(path / "job.csv", **({"ranks": 4} | job))])[0]


def all_of(run: Run) -> Side:
    return trace_side(run, "After", list(run.steps))


def late_rank(rank: int, share: float, until: int) -> Callable[[int, int], float]:
    return lambda who, step: share if who == rank and step < until else 0.0


def test_steps_are_added_up_in_twenty_blocks(tmp_path: Path) -> None:
    side = all_of(recorded(tmp_path, steps=410, noise=0.0))

    assert side.trouble is None
    assert [block.steps for block in side.blocks] == [20, 21] * 10
    assert side.seconds == pytest.approx(410.0)
    assert sum(block.stages["backward"] for block in side.blocks) == pytest.approx(205.0)
    assert (side.ranks, side.begin) == (4, 0.0)
    assert side.end == pytest.approx(410.0)


def test_late_ranks_and_their_cost_are_those_of_the_judge(tmp_path: Path) -> None:
    """A rank that is late for half of the time costs half as much over all of it."""
    run = recorded(tmp_path, late=late_rank(3, 0.3, until=200), noise=0.01)
    half, whole = trace_side(run, "Before", range(200)), all_of(run)

    assert half.late is not None
    assert whole.late is not None
    assert [(one.rank, one.stage, one.instance) for one in half.late] == [(3, "backward", "node1")]
    assert half.late[0].gpus_lost == pytest.approx(3 * 0.3 / 1.3, rel=0.05)
    assert whole.late[0].gpus_lost == pytest.approx(3 * 0.15 / 1.15, rel=0.05)
    assert half.slowdown == pytest.approx(1.3, abs=0.03)


def test_kinds_of_loss_add_up_to_the_wait(tmp_path: Path) -> None:
    """All that the ranks waited is lost, and the late rank's part of it is persistent."""
    side = all_of(recorded(tmp_path, late=late_rank(3, 0.3, until=400), noise=0.0))

    for block in side.blocks:
        assert block.lost == pytest.approx(20 * (3 * 0.3 + 4 * 0.05))
        assert sum(block.kinds.values()) == pytest.approx(block.lost)
        assert block.kinds["persistent"] == pytest.approx(20 * 3 * 0.3)


def test_without_measured_waits_the_loss_is_unknown(tmp_path: Path) -> None:
    side = all_of(recorded(tmp_path, synced=False))

    assert [block.lost for block in side.blocks] == [None] * 20
    assert side.late is None


def test_a_checkpoint_is_no_pause(tmp_path: Path) -> None:
    """Minutes in a checkpoint are what checkpoints take."""
    run = recorded(tmp_path, steps=120)
    for stages in run.steps[50].values():
        stages["checkpoint"] = 90.0

    assert all_of(run).trouble is None


def test_sampled_steps_have_no_gaps(tmp_path: Path) -> None:
    """Where every tenth step is recorded, the time between them is no gap."""
    run = recorded(tmp_path, steps=120, every_seconds=100.0)
    run.steps = {10 * step: ranks for step, ranks in run.steps.items()}
    run.times = {
        rank: {10 * step: time for step, time in times.items()} for rank, times in run.times.items()
    }

    assert all_of(run).trouble is None


def paused(run: Run) -> None:
    for times in run.times.values():
        for step in range(300, 400):
            times[step] += 100.0


def hung(run: Run) -> None:
    run.steps[250][2]["backward"] += 90.0


def elastic(run: Run) -> None:
    for step in range(200, 400):
        del run.steps[step][3], run.times[3][step]


def whole(run: Run) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("spoil", "steps", "trouble"),
    [
        (whole, [], "no step."),
        (whole, [*range(100), *range(200, 400)], "lacks the steps from 100 to 199; compare"),
        (hung, range(400), "a step of 91 s (step 250): the job stood still; compare"),
        (paused, range(400), "a gap of 100 s before step 300: the job stood still or was restar"),
        (elastic, range(400), "ranks that come and go; compare a period in which all are there."),
    ],
)
def test_what_is_no_undisturbed_run_is_a_trouble(
    tmp_path: Path, spoil: Callable[[Run], None], steps: Collection[int], trouble: str
) -> None:
    """A restart, a hang, a gap in the numbers or in time, other ranks: with its place."""
    run = recorded(tmp_path)
    spoil(run)

    assert trouble in str(trace_side(run, "After", steps).trouble)
