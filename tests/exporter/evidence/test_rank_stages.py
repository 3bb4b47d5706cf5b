"""Figures of a rank's steps, from its snapshots."""

from typing import Any

from exporter.evidence.rank import RankReadings
from exporter.ranks.store import HeldRank
from tests.exporter.snapshots import snapshot


def steps(*snapshots: dict[str, Any]) -> dict[str, float]:
    """Return the figures of the newest of these, a second apart."""
    readings, found = RankReadings(), {}
    for at, changes in enumerate(snapshots):
        held = HeldRank(snapshot(**changes), 5_000.0 + at)
        found = {name: amount / weight for name, amount, weight in readings.read_steps(held)}
    return found


def test_stage_that_a_rank_lacks_takes_no_time() -> None:
    """So that quantiles are those of all peers, and a stage that one has alone is seen to be so."""
    found = steps(
        {"steps": 10, "stage_seconds": {"data": 1.0, "forward": 2.0, "sync": 1.0}},
        {"steps": 20, "stage_seconds": {"data": 2.0, "forward": 5.0, "sync": 2.0}},
    )

    assert (found["data_seconds"], found["forward_seconds"]) == (0.1, 0.3)
    assert found["checkpoint_seconds"] == found["eval_seconds"] == 0.0
    assert "sync_seconds" not in found


def test_step_includes_the_wait_for_others() -> None:
    """Shares of the time are held against it."""
    found = steps(
        {"steps": 10, "stage_seconds": {"data": 1.0, "sync": 1.0}},
        {"steps": 20, "stage_seconds": {"data": 2.0, "sync": 3.0}},
    )

    assert found["step_seconds"] == 0.3


def test_stages_that_nobody_measured_are_not_known() -> None:
    """Their times are absent, not 0."""
    found = steps({"steps": 10, "stage_seconds": {}}, {"steps": 20, "stage_seconds": {}})

    assert not [name for name in found if name.endswith("_seconds")]


def test_stage_that_occurs_for_the_first_time_began_at_zero() -> None:
    """A checkpoint in the tenth step has its time in the first figures."""
    found = steps(
        {"steps": 10, "stage_seconds": {"data": 1.0}},
        {"steps": 20, "stage_seconds": {"data": 2.0, "checkpoint": 5.0}},
    )

    assert found["checkpoint_seconds"] == 0.5
