"""Statistics of windows: they add up, and care for no rank's number."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rank_probe.judge.windows import Mark, MarkHistory, Window
from rankskew.accounting.windows import PlainReduction
from tests.alerts.jobs import STAGE_SHARES, Fault, Job, Step, simulate
from tests.rank_probe.judged import judged_steps, reduction_of, vectors


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


def permuted(steps: list[Step], order: list[int]) -> list[Step]:
    """Return *steps* with rank *order* [new] as each new rank."""
    return [
        replace(
            step,
            stages=[step.stages[rank] for rank in order],
            sync=[step.sync[rank] for rank in order],
        )
        for step in steps
    ]


@settings(max_examples=25, deadline=None)
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
    assert sum(whole.caused) == pytest.approx(_caused(whole), rel=1e-6, abs=1e-9)


def _caused(window: Window) -> float:
    return sum(each.caused for group in window.groups for each in group.standing) * window.steps


@settings(max_examples=20, deadline=None)
@given(jobs(), st.data())
def test_names_move_with_the_ranks(job: Job, data: st.DataObject) -> None:
    """Who is late is a matter of what a rank does, not of its number or that of its node."""
    job = replace(job, seconds=120, group_work=(1.0,))
    steps = simulate(job)
    order = data.draw(st.permutations(range(job.ranks)))
    found = judged_steps(job, steps)
    moved = judged_steps(job, permuted(steps, list(order)))

    assert moved.named == {(order.index(rank), stage, kind) for rank, stage, kind in found.named}
    assert moved.last.slowdown == pytest.approx(found.last.slowdown)
    assert moved.last.gpus_lost == pytest.approx(found.last.gpus_lost, rel=1e-6, abs=1e-6)


def history(step_seconds: float, seconds: float) -> MarkHistory:
    """Return the history of a job whose steps took *step_seconds* each."""
    made = MarkHistory()
    for number in range(1, int(seconds / step_seconds) + 1):
        made.add(Mark(number, number * step_seconds, None))
    return made


@pytest.mark.parametrize(("step_seconds", "seconds"), [(1.0, 100), (1.0, 7200), (60.0, 7200)])
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
    assert history(1.0, 30_000).marks[0].at > 30_000 - 1.2 * 21_600
    assert history(360.0, 80_000).marks[0].steps < 222 - 120
