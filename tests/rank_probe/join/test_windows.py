"""Statistics of steps are the same on torch's tensors and in plain Python, and so are verdicts."""

from random import Random

import pytest
import torch

from rank_probe.join.align import Aligned
from rank_probe.join.charge import charge, members_by_size
from rank_probe.join.merge import Merger
from rank_probe.join.windows import TensorReduction
from rank_probe.judge.judge import Judge
from rank_probe.judge.windows import Leader, Reduction, Window
from rank_probe.wire.stages import STAGES
from rankskew.accounting.windows import PlainReduction

Run = list[list[list[int]]]  # microseconds [step][rank][stage]


def drawn(random: Random, ranks: int, steps: int) -> Run:
    """Draw steps of *ranks*, one of them a tenth later in forward."""
    usual = [random.choice([0, 2_000, 10_000, 30_000]) for _ in STAGES]
    run = [
        [[round(each * random.uniform(0.8, 1.2)) for each in usual] for _ in range(ranks)]
        for _ in range(steps)
    ]
    for step in run:
        step[ranks // 2][STAGES.index("forward")] += 8_000
        slowest = max(sum(row[:-1]) for row in step)
        for row in step:
            row[-1] = slowest - sum(row[:-1]) + 1_000
    return run


def flat(window: Window) -> list[float]:
    """Return every number of *window*, in order; the begin is compared by its steps."""

    def numbers(each: object) -> list[float]:
        if isinstance(each, tuple):
            return [number for part in each for number in numbers(part)]
        return [float(each)] if isinstance(each, int | float) else []

    return numbers(window[1:])


def seconds(step: list[list[int]]) -> dict[int, dict[str, float]]:
    """Return *step* as plain Python has it: seconds by rank and stage."""
    return {
        rank: dict(zip(STAGES, (each / 1e6 for each in row), strict=True))
        for rank, row in enumerate(step)
    }


@pytest.mark.parametrize("seed", range(12))
def test_both_reductions_say_the_same(seed: int) -> None:
    """Sums, baselines, spreads, what stands out, what was before, leaders: one arithmetic."""
    random = Random(seed)
    ranks = random.choice([1, 2, 3, 4, 7, 16])
    groups = random.choices("ab"[: random.randint(1, 2)], k=ranks)
    run = drawn(random, ranks, 40)
    plain = PlainReduction(dict(enumerate(groups)), dict.fromkeys(range(ranks), 0))
    tensors = TensorReduction(range(ranks), groups, [0] * ranks)
    members = members_by_size(torch.tensor([ord(group) for group in groups]))
    leaders: tuple[list[Leader], list[Leader]] = ([], [])
    marks = []
    for number, step in enumerate(run, 1):
        leaders[0].append(plain.add(number, seconds(step), number / 2))
        part = torch.tensor([step], dtype=torch.int32)
        leaders[1].extend(tensors.add([number], part, charge(part, members), [number / 2]))
        if number in (5, 15, 40):
            marks.append((plain.mark(number), tensors.mark(number)))
    early, middle, late = marks
    both: tuple[Reduction, Reduction] = (plain, tensors)
    one, other = (
        each.window(middle[at], late[at], watched=[0], before=(early[at], middle[at]))
        for at, each in enumerate(both)
    )
    for rank in range(ranks):
        paths = [each.path(rank, [late[at]]) for at, each in enumerate(both)]
        assert paths[0] == pytest.approx(paths[1], rel=1e-6, abs=1e-9)

    own = [each.own(middle[at], late[at]) for at, each in enumerate(both)]
    assert own[0] == pytest.approx(own[1], rel=1e-6, abs=1e-9)
    assert flat(one) == pytest.approx(flat(other), rel=1e-6, abs=1e-9)
    assert [each.rank for group in one.groups for each in group.standing] == [
        each.rank for group in other.groups for each in group.standing
    ]
    for a, b in zip(*leaders, strict=True):
        assert a[:4] == b[:4]
        assert a[4:] == pytest.approx(b[4:], rel=1e-6, abs=1e-9)


def test_the_join_judges_as_a_replay_does() -> None:
    """The same steps give the same verdicts, in the join's tensors and in plain Python."""
    run = drawn(Random(3), 6, 120)
    merger = Merger(6)
    plain = PlainReduction(dict.fromkeys(range(6), "all"), dict.fromkeys(range(6), 7))
    judge = Judge(plain)
    for number, step in enumerate(run, 1):
        now = number / 4
        said = merger.judge(
            Aligned(
                [number],
                range(6),
                torch.tensor([step], dtype=torch.int32),
                torch.ones(6, dtype=torch.int64),
                torch.full((6,), 7, dtype=torch.int64),
            ),
            {1: "all"},
            now,
        )
        leader = plain.add(number, seconds(step), now)
        expected = judge.judge(plain.mark(now), [leader], step=number)

        assert said.reason == expected.reason
        assert [(each.rank, each.stage, each.kind) for each in said.late] == [
            (each.rank, each.stage, each.kind) for each in expected.late
        ]
        assert said.gpus_lost == pytest.approx(expected.gpus_lost, abs=1e-6)
    assert [(each.rank, each.stage) for each in said.late] == [(3, "forward")]
