"""Losses are split into parts that add up to what was counted."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankskew.client.prometheus import Series
from rankskew.report.job import restarts
from rankskew.report.losses import (
    LATE,
    ROTATING,
    Loss,
    counted,
    gauged,
    integral,
    slowdowns,
    slower_gpus,
    worth,
)
from rankskew.times import iso
from tests.alerts.promtool import answers

SECONDS = st.floats(0, 1e7)
WHERE = st.tuples(st.sampled_from("012"), st.sampled_from(["data", "forward"]))
WHY = st.tuples(st.sampled_from("012"), st.sampled_from(["data", "forward"]), st.sampled_from("ab"))


def test_cause_is_known_while_the_rank_is_named() -> None:
    """The rest was lost in steps in which it happened to be the slowest.

    Gauges, means of minutes, that say more than the exact count are scaled down.
    """
    named: dict[tuple[str, ...], float] = {("3", "data", "input"): 60.0, ("3", "data", ""): 30.0}

    assert counted({("3", "data"): 100.0}, named) == [
        Loss(LATE, 60.0, "3", "data", "input"),
        Loss(LATE, 30.0, "3", "data", "unknown"),
        Loss(ROTATING, 10.0, "3", "data"),
    ]
    assert [loss.gpu_hours for loss in counted({("3", "data"): 45.0}, named)] == [30.0, 15.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(WHERE, SECONDS), st.dictionaries(WHY, SECONDS))
def test_parts_add_up_to_the_count(
    caused: dict[tuple[str, ...], float], named: dict[tuple[str, ...], float]
) -> None:
    """Whatever the gauges say, by rank and stage and as a whole, and no part is negative."""
    found = counted(caused, named)

    assert sum(loss.gpu_hours for loss in found) == pytest.approx(sum(caused.values()))
    assert all(loss.gpu_hours >= -1e-6 for loss in found)
    for (rank, stage), seconds in caused.items():
        parts = [loss.gpu_hours for loss in found if (loss.rank, loss.stage) == (rank, stage)]
        assert sum(parts) == pytest.approx(seconds)


def test_without_counters_the_kinds_are_split() -> None:
    """What is late but not named, and in turn but in no stage, has a part of its own."""
    kinds: dict[tuple[str, ...], float] = {
        ("persistent",): 100.0,
        ("rotating",): 50.0,
        ("common",): 7.0,
    }
    found = worth(gauged(kinds, {("3", "data", "gc"): 80.0}, {("forward",): 45.0}))

    assert found == [
        Loss(LATE, 80.0, "3", "data", "gc"),
        Loss(ROTATING, 45.0, stage="forward"),
        Loss(LATE, 20.0, cause="unknown"),
        Loss(ROTATING, 5.0),
    ]


def change(stage: str, *points: tuple[float, float]) -> Series:
    return Series("", {"scope": "all", "stage": stage}, list(points))


def test_job_is_slower_from_the_onset_on() -> None:
    """It costs nothing while it hangs, and nothing before the job was seen; a break is bridged."""
    told = [(at, 2.0) for at in (60.0, 75.0, 105.0)]
    gpus = change("data", (60.0, 1.0), (105.0, 3.0))
    onsets = [change("data", (60.0, 30.0))]
    (found,), _ = slowdowns([change("data", *told)], onsets, [gpus], 0, 15, 15)
    (late,), _ = slowdowns([change("data", *told)], onsets, [gpus], 45, 15, 15)
    two, _ = slowdowns([change("data", *told)], [], [gpus], 0, 15, 0)

    assert (found.begin, found.end, found.seconds, found.ratio) == (iso(30), iso(120), 90, 2.0)
    assert (late.begin, late.gpu_hours) == (iso(45), 15 * 5 / 3600)
    assert found.gpu_hours == 15 * 6 / 3600
    assert [(each.begin, each.end) for each in two] == [(iso(60), iso(90)), (iso(105), iso(120))]


def test_what_late_ranks_cost_since_is_no_cost_of_the_change(tmp_path: Path) -> None:
    """What they cost before is in the pace before; a job that hangs has neither."""
    change = 'rankskew_job_change_gpus{job_id="j",scope="all",stage="data",instance="%s"}'
    late = 'job_kind:rankskew_gpus_lost:sum{job_id="j",kind="persistent"}'
    series = [
        *({"series": change % node, "values": "_x9 0.75x20 2.25x20"} for node in "nm"),
        {"series": late, "values": "0.25x29 1.75x9 stale _x40"},
    ]
    asked = [(slower_gpus('job_id="j"'), 15.0 * at) for at in (5, 15, 35, 45)]
    found = answers(tmp_path, series, asked, rules=(), groups=())
    labels = {"job_id": "j", "scope": "all", "stage": "data"}

    assert [found[each] for each in asked] == [[], [(labels, 0.75)], [(labels, 0.75)], []]


def test_changes_at_the_same_time_cost_what_the_larger_one_does() -> None:
    """Each is of the job's whole steps, whatever the other adds to them."""
    those = [change("data", (0, 2.0), (15, 2.0)), change("sync", (15, 3.0))]
    found, together = slowdowns(those, [], those, 0, 15, 0)

    assert [each.gpu_hours for each in found] == [60 / 3600, 45 / 3600]
    assert together == pytest.approx((15 * 2 + 15 * 3) / 3600)
    assert slowdowns([], [], [], 0, 15, 0) == ([], 0.0)


def test_integral_of_a_gauge() -> None:
    a = Series("", {"kind": "a"}, [(0, 2.0), (15, 3.0)])
    b = Series("", {"kind": "b"}, [(0, 1.0)])

    assert integral([a, b], 900, "kind") == {("a",): 1.25, ("b",): 0.25}


@pytest.mark.parametrize(
    ("ages", "when"),
    [
        # The oldest process is younger than the last look: all processes are new.
        ([(0.0, 100.0), (60.0, 160.0), (120.0, 30.0), (600.0, 20.0), (660.0, 80.0)], [120, 600]),
        # A node was lost: the oldest of the others may be a little younger, or much.
        ([(0.0, 1000.0), (60.0, 1060.0), (120.0, 1090.0), (180.0, 500.0)], []),
    ],
)
def test_restart_is_seen_by_the_age_of_the_oldest_process(
    ages: list[tuple[float, float]], when: list[float]
) -> None:
    assert restarts(ages, 15) == when
