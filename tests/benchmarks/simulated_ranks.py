"""What docs/accuracy.md says of simulated ranks, and of the judge that only they can show."""

import pytest

from benchmarks.accuracy.joined import DEVIATION, SimulatedJoin, steps
from benchmarks.accuracy.plan import FAINT, JOIN, Segment
from rank_probe.judge.judge import Judge
from rankskew.accounting.windows import PlainReduction


def simulated_steps_vary() -> None:
    one = Segment(JOIN, 64, 1, "none", 0.0, 60, 60)
    assert len({one.node(rank) for rank in range(64)}) == 8
    drawn, delays = steps(one)
    assert not any(delays.values())
    forward = [stages["forward"] for step in drawn for stages in step.values()]
    mean = sum(forward) / len(forward)
    deviation = (sum((each - mean) ** 2 for each in forward) / len(forward)) ** 0.5
    assert DEVIATION == 0.02
    assert deviation / mean == pytest.approx(0.02, rel=0.05)


def rank_zero_judges_what_is_posted() -> None:
    one = Segment(JOIN, 64, 1, "data", 0.25, 10, 30)
    drawn, _ = steps(one)
    join = SimulatedJoin(one)
    _, last = join.judged(drawn).verdicts[-1]
    assert last.ranks == {"all": 64}
    assert (last.step, last.absent) == (one.steps, 0)
    assert [(late.rank, late.stage) for late in last.late] == [(0, "data")]
    assert join.gpus_lost() == pytest.approx(63 * 0.25 * 30 / (40 + 0.25 * 30), rel=0.2)


def few_ranks_have_no_mild_one() -> None:
    assert told_in_the_end(Segment("ddp", 4, 1, "data", FAINT, 60, 240)) == []
    assert told_in_the_end(Segment("ddp", 5, 1, "data", FAINT, 60, 240)) == [("mild", 0, "data")]


def told_in_the_end(one: Segment) -> list[tuple[str, int, str]]:
    """Return the late ranks in the last verdict on simulated steps, without a join."""
    reduction = PlainReduction(dict.fromkeys(range(one.ranks), "all"), {})
    judge, now = Judge(reduction), 0.0
    for number, step in enumerate(steps(one)[0], 1):
        now += sum(step[0].values())
        leader = reduction.add(number, step, now)
        verdict = judge.judge(reduction.mark(now), [leader], step=number)
    return [(late.kind, late.rank, late.stage) for late in verdict.late]
