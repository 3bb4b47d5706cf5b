"""The judge's arithmetic: windows of steps, what is usual, how much it varies, how sure that is."""

import math
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.accuracy.false_names import correlated, nodes_drift, told
from rank_probe.judge.bins import FEWEST_STRETCHES, deviation_of, middle_mean
from rank_probe.judge.windows import Mark, MarkHistory, Window
from rankskew.accounting.windows import PlainReduction
from tests.rank_probe.judged import (
    STAGE_SHARES,
    Fault,
    Job,
    Step,
    reduction_of,
    simulate,
    vectors,
)


def test_middle_mean_forgets_outliers_and_uses_the_rest() -> None:
    assert middle_mean([5.0]) == 5.0
    assert middle_mean([1.0, 2.0]) == 1.5
    assert middle_mean([2.0, 90.0, -70.0, 4.0]) == 3.0
    assert middle_mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 900.0]) == 4.5


@pytest.mark.parametrize("count", [3, 12])
def test_deviation_of_stretches_is_seldom_too_small_and_does_not_depend_on_how_they_are_cut(
    count: int,
) -> None:
    """Of independent noise it is known: the root of how many there are in a stretch."""
    ratios, jumps = [], []
    for seed in range(20):
        draw = Random(seed)
        times = [draw.gauss(1, 0.01) for _ in range(count * FEWEST_STRETCHES + 30)]
        found = [deviation_of(times[first:], count) for first in range(count)]
        ratios.append(found[0] / (0.01 / math.sqrt(count)))
        jumps.append(max(found) / min(found))

    assert min(ratios) > 0.8
    assert 1.05 < fmean(ratios) < 1.3
    assert fmean(jumps) < 1.1


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a short job: up to two peer groups, some late ranks or none."""
    ranks = draw(st.integers(2, 9))
    faults = st.builds(
        Fault,
        st.integers(0, ranks - 1),
        st.sampled_from(sorted(STAGE_SHARES)),
        st.floats(0.05, 1.0),
        every=st.sampled_from([1, 1, 7]),
    )
    return Job(
        ranks=ranks,
        seed=draw(st.integers(0, 99)),
        seconds=40,
        stage_noise=draw(st.sampled_from([0.0, 0.01, 0.1])),
        group_work=draw(st.sampled_from([(1.0,), (1.0, 1.2)])),
        faults=tuple(draw(st.lists(faults, max_size=2))),
    )


def marks_of(job: Job, steps: list[Step], at: list[int], reduction: PlainReduction) -> list[Mark]:
    """Add *steps* of *job* and return the marks after so many of them."""
    marks = [reduction.mark(0.0)]
    for number, step in enumerate(steps, 1):
        reduction.add(number, vectors(job, step), step.end_seconds)
        if number in at:
            marks.append(reduction.mark(step.end_seconds))
    return marks


@settings(max_examples=10, deadline=None)
@given(jobs())
def test_windows_add_up_to_the_window_of_all_their_steps(job: Job) -> None:
    """What three windows lost is what the steps of all three lost, in all and by rank."""
    steps = simulate(job)
    reduction = reduction_of(job)
    marks = marks_of(job, steps, [9, 20, len(steps)], reduction)
    everybody = range(job.ranks)
    parts = [reduction.window(a, b, everybody) for a, b in pairwise(marks)]
    whole = reduction.window(marks[0], marks[-1], everybody)

    for name in ("steps", "elapsed", "seconds", "sync", "waited", "unequal"):
        total = sum(getattr(part, name) for part in parts)
        assert getattr(whole, name) == pytest.approx(total, rel=1e-6, abs=1e-9), name
    for at, seconds in enumerate(whole.caused):
        assert seconds == pytest.approx(sum(part.caused[at] for part in parts), rel=1e-6, abs=1e-9)
    # All waiting for the slowest is of unequal groups, or on some rank's account.
    assert whole.waited == pytest.approx(whole.unequal + sum(whole.caused), rel=1e-6, abs=1e-9)
    assert sum(whole.caused) == pytest.approx(caused(whole), rel=1e-6, abs=1e-9)


def caused(window: Window) -> float:
    return sum(each.caused for group in window.groups for each in group.standing) * window.steps


def history(step_seconds: float, seconds: float) -> MarkHistory:
    """Return the history of a job whose steps took *step_seconds* each."""
    made = MarkHistory()
    for number in range(1, int(seconds / step_seconds) + 1):
        made.add(Mark(number, number * step_seconds, None))
    return made


@pytest.mark.parametrize(("step_seconds", "seconds"), [(1.0, 100), (2.0, 7200), (60.0, 7200)])
def test_history_is_dense_where_it_is_recent(step_seconds: float, seconds: float) -> None:
    """Marks lie about a tenth of their age apart, so that thousands of steps need few."""
    marks = history(step_seconds, seconds).marks
    end = marks[-1]

    assert len(marks) < 120
    assert end.steps == int(seconds / step_seconds)
    for before, after in pairwise(marks[1:]):
        age = end.at - before.at
        assert after.at - before.at <= max(0.25 * age, 2 * step_seconds)


def test_history_forgets_what_is_older_than_six_hours() -> None:
    """Of long steps it keeps at least 120, however old they are."""
    assert history(10.0, 30_000).marks[0].at > 30_000 - 1.2 * 21_600
    assert history(360.0, 80_000).marks[0].steps < 222 - 120


def test_noise_that_lasts_names_nobody() -> None:
    """Two per cent for ten steps at a time are named four times, by the noise of steps alone."""
    assert told(correlated, 12.0, hours=4.0, seed=1).total() == 0


def test_node_that_has_drifted_before_is_not_named_for_it() -> None:
    """Each node is 1 % off for half an hour at a time; then its ranks stray together."""
    assert told(nodes_drift, 60.0, hours=6, seed=3).total() == 0
