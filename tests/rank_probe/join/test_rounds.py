"""The join's rounds over a store in memory: who reads what, and which ranks take part."""

import pytest

from rank_probe.join.join import ENOUGH_COVERAGE
from rank_probe.join.ring import digest
from rank_probe.join.store import LIFE_KEY, PlaceInJob
from rank_probe.wire.stages import BACKWARD, DATA
from tests.rank_probe.join.memory_world import GROUP, HEALTHY, LATE, World


def test_every_rank_reads_what_it_caused_and_the_same_verdict() -> None:
    """Who is late, where and at what cost is judged once, by rank 0, and told to all."""
    world = World(["pp0", "pp0", "pp1", "pp1"])
    world.train(range(1, 60), late=[3])
    verdicts = [each.verdict for each in world.rounds]

    assert verdicts[0] == verdicts[1] == verdicts[2] == verdicts[3]
    assert verdicts[3] is not None
    (found,) = verdicts[3]["late"]
    assert (found["rank"], found["peer_group"], found["stage"]) == (3, "pp1", "data")
    assert sum(found["gpus"].values()) == pytest.approx(3 * 40 / 56, rel=0.01)
    assert world.rounds[0].verdict_at == world.now
    world.round()
    world.round()
    results = [each.result for each in world.rounds if each.result]
    assert [result.steps for result in results] == [59] * 4
    assert results[3].paced_steps[DATA] == 59
    assert results[3].wait_caused_seconds[DATA] == pytest.approx(59 * 3 * 0.04)
    assert results[3].wait_caused_seconds[BACKWARD] == 0
    assert [sum(each.wait_caused_seconds) for each in results[:3]] == [0, 0, 0]
    assert [each.coverage.ratio for each in world.rounds] == [1.0] * 4


def test_all_ranks_sample_as_rank_0_does() -> None:
    """Ranks that have settled on different samples of a loop agree on one, and join it all."""
    world = World(["all"] * 2)
    world.rounds[1]._ring.stride = 2
    for number in range(70):
        for each in range(1, 29):
            world.step(28 * number + each)
        world.round()

    assert [each._ring.stride for each in world.rounds] == [1, 1]
    assert [each.coverage.ratio for each in world.rounds] == [1.0] * 2


def test_rank_0_whose_rounds_take_seconds_joins_all_steps_of_a_sample() -> None:
    """Where training keeps the interpreter, rank 0 comes back after five rounds of its peers."""
    world = World(["all"] * 3)
    ratios = []
    for number in range(120):
        for each in range(1, 22):
            world.step(21 * number + each)
        world.round(absent=[0] if number > 10 and number % 5 else [])
        ratios.append([each.coverage.ratio or 0.0 for each in world.rounds])

    assert world.rounds[0]._ring.stride > 1
    # Before a peer knows that rank 0 is slow, it withdraws some steps too early.
    assert min(map(min, ratios[3:])) > 0.9
    assert ratios[-1] == [1.0] * 3


def test_store_does_not_grow_and_is_empty_at_a_clean_end() -> None:
    """Four keys a rank, two a group with a late rank, and the verdict."""
    world = World(["all"] * 3)
    sizes = set()
    for number in range(1, 60):
        world.train([number], late=[2])
        sizes.add(sum(map(len, world.store.values.values())))
    peers = f"peers/{digest('all'):x}"
    own = ("steps", "result", "figures", "facts")
    assert set(world.store.of_life()) == {
        *(
            f"{what}/{rank}"
            for what in ("steps", "result", "figures", "facts")
            for rank in range(3)
        ),
        *("verdict", GROUP, peers),
    }
    assert max(sizes) < 3 * 2_000
    life = world.store.values[LIFE_KEY].decode().partition(" ")[0]
    world.rounds[2].take_back()
    world.store.values[f"{life}/result/2"] = b"written by rank 0 in the same moment"
    world.store.values[f"{life}/figures/2"] = b"of a rank that was killed"
    world.store.values[f"{life}/facts/2"] = b"of the same"
    world.rounds[0].take_back()
    assert set(world.store.values) == {f"{life}/{key}/1" for key in own}
    world.rounds[1].take_back()
    assert world.store.values == {}


def test_rank_that_never_steps_is_left_out_until_it_does() -> None:
    """An evaluator, or a rank that loads for long, costs the join its first rounds only."""
    world = World(["all"] * 3)
    world.train(range(1, 10), absent=[1])
    assert [world.rounds[rank].result for rank in (0, 2)] == [None, None]
    world.train(range(10, 40), absent=[1])
    verdict, result = world.rounds[2].verdict, world.rounds[2].result
    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"], verdict["reason"]) == (1, {"all": 2}, None)
    assert world.rounds[2].coverage.ratio == 1.0
    assert result is not None
    assert result.steps > 25
    assert world.rounds[1].result is None
    world.train(range(40, 80))
    verdict = world.rounds[0].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"]) == (0, {"all": 3})


@pytest.mark.parametrize("still_posts", [True, False])
def test_rank_that_stops_stepping_is_left_out_until_it_steps_again(still_posts: bool) -> None:
    """It has finished, or evaluates: its peers are judged without it, and not by its past."""
    world = World(["all"] * 3)
    world.train(range(1, 11))

    def alone(steps: range) -> None:
        for number in steps:
            world.step(number, late=[0])
            world.kept[1].waiting.clear()
            world.round([] if still_posts else [1])

    alone(range(11, 20))
    assert world.rounds[0].result is not None
    assert world.rounds[0].result.steps == 10
    assert (world.rounds[0].coverage.ratio or 0.0) < ENOUGH_COVERAGE
    alone(range(20, 120))
    verdict = world.rounds[2].verdict
    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"], verdict["reason"]) == (1, {"all": 2}, None)
    assert [late["rank"] for late in verdict["late"]] == [0]
    assert [world.rounds[rank].coverage.ratio for rank in (0, 2)] == [1.0, 1.0]
    world.train(range(120, 180))
    verdict = world.rounds[1].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"], verdict["late"]) == (0, {"all": 3}, [])


def test_rank_that_has_never_stepped_is_left_out_though_it_posts() -> None:
    """It has no steps to offer, but is in the group, as an evaluator may be."""
    world = World(["all"] * 3)
    for number in range(1, 60):
        world.step(number)
        world.kept[1].waiting.clear()
        world.round()
    verdict = world.rounds[0].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"], verdict["reason"]) == (1, {"all": 2}, None)


def test_rank_that_counts_other_steps_stays_left_out() -> None:
    """A process that takes a dead one's place in the group counts from 1, as its peers have not."""
    world = World(["all"] * 3)
    world.train(range(1, 50))
    life = world.store.values[LIFE_KEY].decode().partition(" ")[0]
    world.store.delete_key(f"{life}/steps/1")
    world.train(range(50, 70), absent=[1])
    world.kept[1].waiting.clear()
    for number in range(70, 110):
        world.step(number)
        world.kept[1].waiting[-1] = LATE._replace(step=number - 69)
        world.round()
    verdict = world.rounds[0].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["late"], verdict["step"]) == (1, [], 108)


def test_rank_that_hangs_holds_up_all_and_is_not_left_out() -> None:
    """The others end at most the step after its last: nobody goes on without it."""
    world = World(["all"] * 3)
    world.train(range(1, 40))
    world.step(40)
    world.kept[1].waiting.clear()
    for _ in range(60):
        world.round()
    before = world.rounds[0].verdict
    world.kept[1].waiting.append(HEALTHY._replace(step=40))
    world.train(range(41, 45))
    verdict = world.rounds[0].verdict

    assert before is not None
    assert verdict is not None
    assert (verdict["absent"], verdict["reason"]) == (before["absent"], None) == (0, None)


@pytest.mark.parametrize("rounds_behind", [5, 28])
def test_rank_whose_thread_comes_late_keeps_its_place_and_the_judge_its_past(
    rounds_behind: int,
) -> None:
    """Training may keep the interpreter for long: what it posts then is about to be current."""
    world = World(["all"] * 3)
    world.train(range(1, 40))
    world.train(range(40, 40 + rounds_behind), absent=[1])
    world.train(range(40 + rounds_behind, 50 + rounds_behind))
    verdict = world.rounds[0].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["reason"]) == (0, None)


@pytest.mark.parametrize(
    ("ranks", "seconds"), [(2, 1), (256, 1), (257, 2), (4_096, 5), (4_097, 10), (100_000, 10)]
)
def test_large_world_takes_turns_less_often(ranks: int, seconds: float) -> None:
    """One store serves 256 ranks every second, and any number every ten."""
    assert PlaceInJob(0, ranks).period_seconds == seconds
