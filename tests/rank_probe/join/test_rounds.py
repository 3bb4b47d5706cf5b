"""The join's rounds over a store in memory: who reads what, who takes part, in which life.

And what a rank offers, and how many of the steps whose turn has come were joined.
"""

from itertools import pairwise
from typing import Any

import pytest

from rank_probe.join.ring import (
    FEW_STEPS_A_ROUND,
    HEAD,
    LONGEST_ROUND,
    RING,
    ROUNDS_REMEMBERED,
    ROW,
    STEPS_A_ROUND,
    Pace,
    StepRing,
    digest,
    is_sampled,
)
from rank_probe.join.rounds import WINDOW_SECONDS, JoinCoverage
from rank_probe.join.store import LIFE_KEY, PlaceInJob
from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import BACKWARD, DATA, STAGES
from tests.rank_probe.join.memory_world import (
    GROUP,
    HEALTHY,
    LATE,
    LIFE,
    MemoryStore,
    World,
    living,
)

# The judge warms up for 5 steps and needs 20 more.
WITHIN = range(1, 31)


def late_of(world: World) -> list[list[int]]:
    """Return whom each rank reads to be late."""
    verdicts = [each.verdict for each in world.rounds]
    return [[late["rank"] for late in verdict["late"]] if verdict else [] for verdict in verdicts]


def who_is_in(world: World, rank: int = 0) -> tuple[Any, ...]:
    """Return what *rank* reads: how many are absent, the ranks compared, why nothing is said."""
    verdict = world.verdict(rank)
    return verdict["absent"], verdict["ranks"], verdict["reason"]


def life_on(store: MemoryStore) -> str:
    return store.values[LIFE_KEY].decode().partition(" ")[0]


def test_every_rank_reads_what_it_caused_and_the_same_verdict() -> None:
    """Who is late, where and at what cost is judged once, by rank 0, and told to all."""
    world = World(["pp0", "pp0", "pp1", "pp1"])
    world.train(WITHIN, late=[3])
    verdicts = [world.verdict(rank) for rank in range(4)]

    assert verdicts == verdicts[:1] * 4
    (found,) = verdicts[3]["late"]
    assert (found["rank"], found["peer_group"], found["stage"]) == (3, "pp1", "data")
    assert sum(found["gpus"].values()) == pytest.approx(3 * 40 / 56, rel=0.01)
    assert world.rounds[0].verdict_at == world.now
    world.round()
    world.round()
    results = [each.result for each in world.rounds if each.result]
    assert [result.steps for result in results] == [30] * 4
    assert results[3].wait_caused_seconds[DATA] == pytest.approx(30 * 3 * 0.04)
    assert results[3].wait_caused_seconds[BACKWARD] == 0
    assert [sum(each.wait_caused_seconds) for each in results[:3]] == [0, 0, 0]
    assert [each.coverage.ratio for each in world.rounds] == [1.0] * 4


def test_rank_0_whose_rounds_take_seconds_joins_all_steps_of_a_sample() -> None:
    """Where training keeps the interpreter, rank 0 comes back after five rounds of its peers."""
    world = World(["all"] * 3)
    ratios = []
    for number in range(80):
        for each in range(1, 22):
            world.step(21 * number + each)
        world.round(absent=[0] if number > 10 and number % 5 else [])
        ratios.append([each.coverage.ratio or 0.0 for each in world.rounds])

    assert world.rounds[0]._ring.stride > 1
    # Before a peer knows that rank 0 is slow, it withdraws some steps too early.
    assert min(map(min, ratios[3:])) > 0.9
    assert min(ratios[-1]) > 0.94


def test_steps_stay_on_offer_until_rank_0_has_compared_them() -> None:
    """Now and then another thread of rank 0 has the interpreter for seven of its peers' rounds.

    The steps of that time are compared afterwards, or a sample of them that spans all of it.
    """
    world = World(["all"] * 3)
    ratios = []
    for number in range(120):
        for each in range(1, 22):
            world.step(21 * number + each)
        world.round(absent=[0] if number > 10 and number % 20 < 7 else [])
        ratios.append([each.coverage.ratio or 0.0 for each in world.rounds])

    assert min(map(min, ratios[90:])) > 0.8
    assert len(world.store.values[f"{life_on(world.store)}/steps/1"]) <= HEAD.size + RING * ROW.size


def test_store_does_not_grow_and_is_empty_at_a_clean_end() -> None:
    """Four keys a rank, two a group with a late rank, and the verdict."""
    world = World(["all"] * 3)
    sizes = set()
    for number in WITHIN:
        world.train([number], late=[2])
        sizes.add(sum(map(len, world.store.values.values())))
    peers = f"peers/{digest('all'):x}"
    own = ("steps", "result", "figures", "facts")
    assert set(world.store.of_life()) == {
        *(f"{what}/{rank}" for what in own for rank in range(3)),
        *("verdict", GROUP, peers),
    }
    assert max(sizes) < 3 * 2_000
    life = life_on(world.store)
    world.rounds[2].take_back()
    world.store.values[f"{life}/result/2"] = b"written by rank 0 in the same moment"
    world.store.values[f"{life}/figures/2"] = b"of a rank that was killed"
    world.store.values[f"{life}/facts/2"] = b"of the same"
    world.rounds[0].take_back()
    assert set(world.store.values) == {f"{life}/{key}/1" for key in own}
    world.rounds[1].take_back()
    assert world.store.values == {}


@pytest.mark.parametrize(
    ("trained", "still_posts", "before"), [(0, False, 50), (0, True, 0), (10, True, 50)]
)
def test_rank_that_does_not_step_is_left_out_until_it_does(
    trained: int, still_posts: bool, before: int
) -> None:
    """It loads for long, evaluates, or has finished: its peers are judged without it and its past.

    Until then the steps that they cannot join lower the share.
    """
    world = World(["all"] * 3, steps_before=[before] * 3)
    world.train(range(1, trained + 1))

    def alone(steps: range) -> None:
        for number in steps:
            world.step(number, late=[0])
            world.kept[1].waiting.clear()
            world.round([] if still_posts else [1])

    alone(range(trained + 1, 20))
    if trained:
        assert world.rounds[0].result is not None
        assert world.rounds[0].result.steps == 10
        assert (world.rounds[0].coverage.ratio or 0.0) < 0.9
    alone(range(20, 75))
    assert who_is_in(world, 2) == (1, {"all": 2}, None)
    assert late_of(world)[2] == [0]
    world.train(range(75, 115))

    assert who_is_in(world, 1) == (0, {"all": 3}, None)
    assert late_of(world)[1] == []


def test_rank_that_counts_other_steps_stays_left_out() -> None:
    """A process that takes a dead one's place in the group counts from 1, as its peers have not."""
    world = World(["all"] * 3)
    world.train(range(1, 50))
    life = life_on(world.store)
    world.store.delete_key(f"{life}/steps/1")
    world.train(range(50, 70), absent=[1])
    world.kept[1].waiting.clear()
    for number in range(70, 110):
        world.step(number)
        world.kept[1].waiting[-1] = LATE._replace(step=number - 69)
        world.round()
    verdict = world.verdict()

    assert (verdict["absent"], verdict["late"], verdict["step"]) == (1, [], 108)


def test_rank_that_hangs_holds_up_all_and_is_not_left_out() -> None:
    """The others end at most the step after its last: nobody goes on without it."""
    world = World(["all"] * 3)
    world.train(range(1, 40))
    world.step(40)
    world.kept[1].waiting.clear()
    for _ in range(60):
        world.round()
    before = who_is_in(world)
    world.kept[1].waiting.append(HEALTHY._replace(step=40))
    world.train(range(41, 45))

    assert who_is_in(world) == before == (0, {"all": 3}, None)


def test_rank_whose_thread_comes_late_keeps_its_place_and_the_judge_its_past() -> None:
    """A rank whose thread training held up is compared again at once when it posts."""
    world = World(["all"] * 3)
    world.train(WITHIN)
    world.train(range(31, 59), absent=[1])
    world.train(range(59, 69))

    assert who_is_in(world) == (0, {"all": 3}, None)


@pytest.mark.parametrize(
    ("ranks", "seconds"), [(2, 1), (256, 1), (257, 2), (4_096, 5), (4_097, 10), (100_000, 10)]
)
def test_large_world_takes_turns_less_often(ranks: int, seconds: float) -> None:
    """One store serves 256 ranks every second, and any number every ten."""
    assert PlaceInJob(0, ranks).period_seconds == seconds


@pytest.mark.parametrize("steps_before", [[5_000, 5_000, 10], [10, 5_000, 10]])
def test_survivors_and_newcomers_count_from_the_groups_first_step(steps_before: list[int]) -> None:
    """Whatever each counted before, and whoever of them is rank 0.

    A device reports a step seconds after it ended, when the next group may be there.
    """
    world = World(["all"] * 3, steps_before=steps_before)
    for number in range(-5, 1):
        world.step(number, late=[0])
    world.train(WITHIN, late=[2])

    assert late_of(world) == [[2]] * 3
    assert world.rounds[0].coverage.ratio == 1.0
    assert world.verdict()["step"] == WITHIN[-2]  # Rank 0 looks before the others post.
    world.round()
    result = world.rounds[2].result
    assert result is not None
    assert result.steps == WITHIN[-1]


def test_ranks_that_were_killed_leave_nothing_that_counts() -> None:
    """Their steps, verdict and results stay in the store until the next group of any size."""
    killed = World(["all"] * 3)
    killed.train(WITHIN, late=[2])
    store = killed.store
    left = {key for key in store.values if key != LIFE_KEY}
    world = World(["all"] * 2, store, steps_before=[0, 30])
    world.round()
    world.step(1)
    world.round()
    assert late_of(world) == [[], []]
    assert world.rounds[1].result is None
    world.train(WITHIN[1:], late=[1])

    assert late_of(world) == [[1], [1]]
    assert who_is_in(world)[:2] == (0, {"all": 2})
    # The name of the group and its figures are left, and the last words of the judge.
    assert {key.split("/", 1)[1].split("/")[0] for key in left & store.values.keys()} == {
        *("verdict", "group", "peers")
    }


def test_rank_that_comes_before_rank_0_waits_in_the_life_that_is_over() -> None:
    """It hears there what was said of another rank of its number, and offers its steps again."""
    world = World(["all"] * 2, living(), steps_before=[9, 9])
    world.store.values |= {f"{LIFE}/verdict": b"{}", f"{LIFE}/result/1": b"old"}
    for number in (1, 2):
        world.step(number)
        world.round(absent=[0])
    assert f"{LIFE}/steps/1" in world.store.values
    assert world.rounds[1].verdict is None
    world.train(range(3, 31), late=[0])

    assert life_on(world.store) != LIFE
    assert late_of(world) == [[0], [0]]
    assert f"{LIFE}/steps/1" not in world.store.values
    world.round()
    result = world.rounds[1].result
    assert result is not None
    assert result.steps == 30


def test_life_that_ends_while_a_rank_reads_it_is_no_news() -> None:
    """If rank 0 deletes its keys during a read, the rank keeps what it had, without an error."""
    world = World(["all"] * 2)
    world.train(WITHIN, late=[1])
    said, result = world.verdict(1), world.rounds[1].result
    world.store.deleted_meanwhile = True
    world.step(len(WITHIN) + 1)
    world.round(absent=[0])

    assert (world.verdict(1), world.rounds[1].result) == (said, result)


def test_rank_that_ends_late_takes_nothing_from_the_next_life() -> None:
    """Also if it was rank 0: its keys are not theirs."""
    old = World(["all"] * 2)
    old.train(range(1, 30))
    new = World(["all"] * 2, old.store, steps_before=[29, 29])
    new.train(range(1, 10))
    before = dict(new.store.values)
    for each in old.rounds:
        each.take_back()

    assert old.store.of_life() != {}
    assert {key for key in before if key.startswith(life_on(new.store))} <= set(new.store.values)
    assert LIFE_KEY in new.store.values
    for each in reversed(new.rounds):
        each.take_back()
    assert set(new.store.values) == set()


# ---- What a rank offers, and how much of it is joined -------------------------------------------

PERIOD = 2.0


def vectors(first: int, count: int, a_round: float = 1.0) -> list[StepVector]:
    """Return *count* steps from number *first* on, of which *a_round* fit in a round."""
    stages = (round(1e9 * PERIOD / a_round / len(STAGES)),) * len(STAGES)
    return [StepVector(step, 0, stages) for step in range(first, first + count)]


def paced(steps_a_round: int, rounds: int) -> tuple[StepRing, list[int]]:
    """Return the ring of a loop after some rounds, and what it has offered in all."""
    ring, offered = StepRing(Pace(PERIOD)), []
    for number in range(rounds):
        steps = vectors(number * steps_a_round + 1, steps_a_round, steps_a_round)
        offered += ring.take(steps, number * PERIOD)
    return ring, offered


@pytest.mark.parametrize("steps", [STEPS_A_ROUND, STEPS_A_ROUND + 1, 2_000])
def test_fast_loop_offers_a_bounded_sample(steps: int) -> None:
    """A thousand steps a second cost no more than sixteen do; up to 32 a round all are offered."""
    ring, offered = paced(steps, 20)
    in_first = [step for step in offered if step <= steps]

    assert FEW_STEPS_A_ROUND < len(in_first) <= 1.2 * STEPS_A_ROUND
    assert len(offered) == pytest.approx(20 * steps / ring.stride, rel=0.15)
    assert STEPS_A_ROUND / 2 <= steps / ring.stride <= STEPS_A_ROUND
    assert len(ring.offers) <= RING
    assert ring.stride > 1 or offered == list(range(1, 20 * STEPS_A_ROUND + 1))


def test_sample_follows_the_pace_without_flutter() -> None:
    """A loop that becomes slow is offered whole again, and a pace in between changes nothing."""
    ring, _ = paced(1_000, 3)
    assert ring.stride == 32
    ring.take(vectors(4_000, 32 * FEW_STEPS_A_ROUND + 1, 1_000), 3 * PERIOD)
    assert ring.stride == 32
    ring.take([], 4 * PERIOD)  # A pause, which is in the sample as often as any step.
    assert ring.stride == 32
    ring.take(vectors(6_000, 10, 10), 5 * PERIOD)
    assert ring.stride == 1


@pytest.mark.parametrize("every", [1, 40, 144])
def test_samples_are_nested_and_hold_their_share_of_what_happens_now_and_then(every: int) -> None:
    """A checkpoint every 40 steps is in the sample as often as the rest, whatever the sample.

    So ranks that disagree on how large a sample is have all of the smaller one in common.
    """
    events = range(every, 1000 * every, every)
    for stride in (2, 4, 16):
        sampled = [number for number, step in enumerate(events) if is_sampled(step, stride)]
        smaller = {number for number, step in enumerate(events) if is_sampled(step, 2 * stride)}
        share = len(sampled) / len(events)

        assert share == pytest.approx(1 / stride, abs=3.5 * (1 / stride / len(events)) ** 0.5)
        assert max(after - before for before, after in pairwise(sampled)) < 15 * stride
        assert smaller < set(sampled)


def test_pace_is_the_period_but_for_slow_rounds() -> None:
    """Rounds lengthen a little on any machine: that changes no sample.

    An evaluation of ten minutes is no slow round, and matters for a few rounds only.
    """
    pace = Pace(PERIOD)
    for number in range(5):
        pace.begin_round(number * 1.4 * PERIOD)
    assert pace.seconds == PERIOD
    pace.begin_round(10.0 * PERIOD)
    assert pace.seconds == pytest.approx(4.4 * PERIOD)
    pace.begin_round(600.0)
    assert pace.seconds == LONGEST_ROUND * PERIOD
    for number in range(1, 2 * ROUNDS_REMEMBERED + 1):
        pace.begin_round(600.0 + number * PERIOD)
    assert pace.seconds == PERIOD


def test_step_that_one_rank_has_not_seen_the_end_of_is_not_lost() -> None:
    """While one rank writes a checkpoint of 30 s, its peers' last step is on its way."""
    coverage = JoinCoverage(Pace(PERIOD))
    ratios = []
    ends = {step: 10.0 * step + (20.0 if step >= 6 else 0.0) for step in range(1, 12)}
    for number in range(75):
        now = number * PERIOD
        # The checkpoint follows step 5, whose end the rank that writes it sees only after it.
        joined = [step for step, end in ends.items() if end + (20.0 if step == 5 else 0.0) <= now]
        coverage.offer([step for step, end in ends.items() if now - PERIOD < end <= now], now)
        coverage.joined(len(joined), max(joined, default=0), now)
        ratios.append(coverage.ratio)

    assert ratios[-1] == 1.0
    assert set(ratios) == {None, 1.0}


def test_share_is_that_of_the_last_minute() -> None:
    """What was lost longer ago is forgotten, and what is lost now shows."""
    coverage = JoinCoverage(Pace(PERIOD))
    joined, ratios = 0, []
    for number in range(120):
        now = 100.0 + number * PERIOD
        coverage.offer(range(10 * number, 10 * number + 10), now)
        joined += 10 if 30 <= number < 90 else 5
        coverage.joined(joined, 10 * number + 9, now)
        ratios.append(coverage.ratio)
    minute = int(WINDOW_SECONDS / PERIOD)

    assert ratios[29] == pytest.approx(0.5)
    assert ratios[30 + minute] == 1.0
    assert ratios[90 + minute // 2] == pytest.approx(0.75, abs=0.02)
    assert ratios[119] == pytest.approx(0.5, abs=0.02)


def test_share_stands_while_no_step_ends() -> None:
    """A hang, or steps longer than a minute, is no loss of coverage."""
    coverage = JoinCoverage(Pace(PERIOD))
    coverage.offer(range(10), 100.0)
    coverage.joined(8, 9, 102.0)
    coverage.joined(8, 9, 1_000.0)
    assert coverage.ratio == pytest.approx(0.8)

    coverage.offer([10], 1_000.0)
    coverage.joined(9, 10, 1_002.0)
    assert coverage.ratio == 1.0
