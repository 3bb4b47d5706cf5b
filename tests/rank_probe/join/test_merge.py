"""The join's tensors say what the reference accounting and plain Python say, and so do verdicts."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
import torch

from rank_probe.join.align import Aligned, Alignment
from rank_probe.join.merge import CHUNK, Merger
from rank_probe.join.result import JoinResult, read_result
from rank_probe.join.ring import LARGEST, Pace, StepRing, digest
from rank_probe.judge.judge import Judge
from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import DATA, STAGES
from rankskew.accounting.step import StageSeconds
from rankskew.accounting.step import charge as reference
from rankskew.accounting.windows import PlainReduction

# Microseconds a stage of one rank, in the order of STAGES.
Row = tuple[int, ...]
# Each step's rows, by rank.
Run = Sequence[Sequence[Row]]


def message(rows: Sequence[tuple[int, Row]], world_size: int, group: str) -> bytes:
    """Return what a rank posts that has the numbered *rows* in its ring."""
    ring = StepRing(Pace(2.0))
    ring.take([StepVector(step, 0, tuple(1000 * each for each in row)) for step, row in rows], 0.0)
    return ring.message(world_size, digest(group), 0)


def merged(run: Run, groups: Sequence[str]) -> list[JoinResult]:
    """Return what each rank is told after the steps of *run*, which are numbered from 1."""
    world_size = len(groups)
    alignment = Alignment(range(1, len(run) + 1), range(world_size), world_size)
    for rank, group in enumerate(groups):
        rows = [(number, step[rank]) for number, step in enumerate(run, 1)]
        assert alignment.add([message(rows, world_size, group)])
    merger = Merger(world_size)
    merger.judge(alignment.common(), {}, 1.0)
    return [result for each in merger.totals.messages(1) if (result := read_result(each))]


def seconds(row: Row) -> StageSeconds:
    """Return the stages that occurred, each a whole number: then sums are exact, and ties tie."""
    return {stage: float(each) for stage, each in zip(STAGES, row, strict=True) if each}


def agree(results: Sequence[JoinResult], run: Run, groups: Sequence[str]) -> None:
    """Hold the sums that each rank is told against those of the reference."""
    peer_groups = dict(enumerate(groups))
    expected = [reference(dict(enumerate(map(seconds, step))), peer_groups) for step in run]
    caused: defaultdict[tuple[int, str], float] = defaultdict(float)
    for each in expected:
        for key, share in each.caused.items():
            caused[key] += share
    for rank, result in enumerate(results):
        told = dict(zip(STAGES, result.wait_caused_seconds, strict=True))
        for stage in STAGES:
            assert told[stage] * 1e6 == pytest.approx(caused[rank, stage], rel=1e-9, abs=1e-6)
        waited = sum(each.unequal[rank] for each in expected)
        assert result.group_wait_seconds * 1e6 == pytest.approx(waited, rel=1e-9, abs=1e-6)
        whole = sum(sum(step[rank]) for step in run)
        assert result.joined_seconds * 1e6 == pytest.approx(whole)
        assert (result.steps, result.last_step) == (len(run), len(run))
        assert result.groups == len(set(groups))


def drawn(random: Random) -> tuple[Run, list[str]]:
    """Draw the steps of a few ranks in a few groups; few values, so that there are many ties."""
    ranks = random.randint(2, 7)
    values = random.choice([(0, 1), (0, 1, 2, 1000), (0, 0, *range(10**6, 2 * 10**6, 77_777))])
    stages = random.randint(1, len(STAGES))
    rest, steps = [0] * (len(STAGES) - stages), range(random.randint(1, 4))
    rows = [[tuple(random.choices(values, k=stages) + rest) for _ in range(ranks)] for _ in steps]
    return rows, random.choices("abc"[: random.randint(1, 3)], k=ranks)


def many() -> tuple[Run, list[str]]:
    """Draw the steps of a world that is too large to be added up in one go."""
    generator = torch.Generator().manual_seed(1)
    ranks, steps = 300, 12
    assert ranks * steps * len(STAGES) > CHUNK
    drawn = torch.randint(0, 50_000, (steps, ranks, len(STAGES)), generator=generator)
    run = [[tuple(row) for row in step] for step in drawn.tolist()]
    return run, [f"pp{rank % 3}" for rank in range(ranks)]


def test_sums_are_those_of_the_reference() -> None:
    """Two ranks or many, ties, unequal groups, stages missing on some ranks: one accounting."""
    for run, groups in (many(), *(drawn(Random(seed)) for seed in range(40))):
        agree(merged(run, groups), run, groups)


def row(**milliseconds: int) -> Row:
    return tuple(1000 * milliseconds.get(stage, 0) for stage in STAGES)


def test_only_steps_that_all_ranks_hold_are_joined() -> None:
    """A rank that is a round ahead or behind leaves the steps that it lacks for later."""
    rows = {number: row(data=number, sync=1) for number in range(1, 40)}
    alignment = Alignment([5, 7, 9, 30], range(2), 2)
    for numbers in (range(4, 35), range(6, 21)):
        alignment.add([message([(step, rows[step]) for step in numbers], 2, "all")])
    aligned = alignment.common()

    assert aligned.steps == [7, 9]
    assert aligned.microseconds[:, :, DATA].tolist() == [[7000, 7000], [9000, 9000]]
    merger = Merger(2)
    merger.judge(aligned, {}, 1.0)
    assert merger.totals.unmerged([5, 7, 9, 30]) == [5, 30]


def test_merged_steps_are_remembered_while_they_are_offered() -> None:
    """So what is remembered does not grow; a step merged late does not take the last one back."""
    merger = Merger(1)
    for steps in ([7, 9], [5]):
        alignment = Alignment(steps, range(1), 1)
        alignment.add([message([(step, row(data=1)) for step in steps], 1, "all")])
        merger.judge(alignment.common(), {}, 1.0)
    result = read_result(merger.totals.messages(1)[0])

    assert result is not None
    assert (result.steps, result.last_step) == (3, 9)
    assert merger.totals.unmerged([7, 9, 11]) == [11]
    assert merger.totals.unmerged([5, 7, 9, 11]) == [5, 11]


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"\0" * 7,
        message([], 2, "all"),
        message([(1, row(data=1))], 3, "all"),
        b"\0" * 24 + message([(1, row(data=1))], 2, "all")[24:],
    ],
    ids=["empty", "cut off", "no steps", "another world", "another version"],
)
def test_message_of_another_kind_joins_nothing(other: bytes) -> None:
    """What is not this version's message of this world leaves nothing in common."""
    alignment = Alignment([1], range(2), 2)
    assert alignment.add([message([(1, row(data=1))], 2, "all")])

    assert not alignment.add([other])


def test_defaults_that_a_training_changed_matter_not() -> None:
    """Another default type or device, or no gradients, leaves the arithmetic as it is."""
    healthy, late = row(data=5, sync=42), row(data=47, sync=2)
    expected = merged([[healthy, late]], ["all"] * 2)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        with torch.inference_mode():
            assert merged([[healthy, late]], ["all"] * 2) == expected
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(default)


def test_longest_time_that_a_message_holds_is_more_than_half_an_hour() -> None:
    """A longer stage is told as that long, never as a negative time."""
    endless = (10**10,) * len(STAGES)
    (result, _) = merged([[endless, endless]], ["all"] * 2)

    assert result.joined_seconds == len(STAGES) * LARGEST / 1e6 > 30 * 60


Steps = list[list[list[int]]]  # microseconds [step][rank][stage]


def drawn_late(random: Random, ranks: int, steps: int, *, synced: bool) -> Steps:
    """Draw steps of *ranks*, one of them later in forward; not *synced*, no wait was measured."""
    usual = [random.choice([0, 2_000, 10_000, 30_000]) for _ in STAGES]
    run = [
        [[round(each * random.uniform(0.9, 1.1)) for each in usual] for _ in range(ranks)]
        for _ in range(steps)
    ]
    for step in run:
        step[ranks // 2][STAGES.index("forward")] += 60_000
        slowest = max(sum(row[:-1]) for row in step)
        for row in step:
            row[-1] = slowest - sum(row[:-1]) + 1_000 if synced else 0
    return run


@pytest.mark.parametrize(
    ("groups", "synced"), [("aaaaaa", True), ("abaababbb", True), ("aa", False)]
)
def test_the_join_judges_as_a_replay_does(groups: str, synced: bool) -> None:
    """The same steps give the same verdicts, in the join's tensors and in plain Python."""
    ranks = range(len(groups))
    run = drawn_late(Random(3), len(groups), 50, synced=synced)
    merger = Merger(len(groups))
    plain = PlainReduction(dict(enumerate(groups)), dict.fromkeys(ranks, 7))
    judge = Judge(plain)
    numbers = [ord(group) for group in groups]
    for number, step in enumerate(run, 1):
        now = number / 4
        aligned = Aligned(
            [number],
            ranks,
            torch.tensor([step], dtype=torch.int32),
            torch.tensor(numbers, dtype=torch.int64),
            torch.full((len(groups),), 7, dtype=torch.int64),
        )
        said = merger.judge(aligned, dict(zip(numbers, groups, strict=True)), now)
        of_ranks = [dict(zip(STAGES, (each / 1e6 for each in row), strict=True)) for row in step]
        leader = plain.add(number, dict(enumerate(of_ranks)), now)
        expected = judge.judge(plain.mark(now), [leader], step=number)

        if number % 5:
            continue
        one, other = dict(leaves(said.to_json())), dict(leaves(expected.to_json()))
        assert one.keys() == other.keys()
        for place, each in one.items():
            is_exact = not isinstance(each, float)
            assert each == (other[place] if is_exact else pytest.approx(other[place], abs=1e-5))
    assert [(each.rank, each.stage) for each in said.late] == [(len(groups) // 2, "forward")]


def leaves(said: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and word of what was *said*, and where it is."""
    if isinstance(said, dict | list):
        for key, part in said.items() if isinstance(said, dict) else enumerate(said):
            yield from leaves(part, f"{path}.{key}")
    else:
        yield path, said
