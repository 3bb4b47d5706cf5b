"""A group that is formed anew on the same store is judged as if there had been none before it."""

import pytest

from rank_probe.join.store import LIFE_KEY
from rank_probe.wire.stages import DATA
from tests.rank_probe.join.memory_world import LIFE, MemoryStore, World, living

# The judge warms up for 5 steps and needs 20 more.
WITHIN = range(1, 31)


def late_of(world: World) -> list[list[int]]:
    """Return whom each rank reads to be late."""
    verdicts = [each.verdict for each in world.rounds]
    return [[late["rank"] for late in verdict["late"]] if verdict else [] for verdict in verdicts]


def life_on(store: MemoryStore) -> str:
    return store.values[LIFE_KEY].decode().partition(" ")[0]


@pytest.mark.parametrize("steps_before", [[5_000, 5_000, 0], [0, 5_000, 0], [40, 7_000, 6_999]])
def test_survivors_and_newcomers_count_from_the_first_step_of_the_group(
    steps_before: list[int],
) -> None:
    """Whatever each counted before, and whoever of them is rank 0."""
    world = World(["all"] * 3, steps_before=steps_before)
    world.train(WITHIN, late=[2])

    assert late_of(world) == [[2]] * 3
    assert world.rounds[0].verdict is not None
    assert world.rounds[0].verdict["step"] == WITHIN[-2]  # Rank 0 looks before the others post.
    world.round()
    result = world.rounds[2].result
    assert result is not None
    assert result.paced_steps[DATA] == WITHIN[-1]


def test_first_steps_of_a_newcomer_are_not_held_against_the_past_of_the_others() -> None:
    """The judge begins with the group: who is slow in its first five steps is named by nobody."""
    before = World(["all"] * 3)
    before.train(range(1, 200))
    world = World(["all"] * 3, before.store, steps_before=[199, 199, 0])
    named = []
    for number in range(1, 120):
        world.train([number], late=[2] if number <= 5 else [])
        named += late_of(world)

    assert named == [[]] * len(named)
    verdict = world.rounds[0].verdict
    assert verdict is not None
    assert (verdict["reason"], verdict["changes"]) == (None, [])


def test_steps_of_the_group_before_are_not_of_this_one() -> None:
    """A device reports a step seconds after it ended, when the next group may be there."""
    world = World(["all"] * 2, steps_before=[100, 100])
    for number in range(-5, 1):
        world.step(number, late=[0])
    world.train(WITHIN, late=[1])

    assert late_of(world) == [[1], [1]]
    assert world.rounds[0].coverage.ratio == 1.0


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_were_killed_leave_nothing_that_counts(ranks: int) -> None:
    """Their steps, verdict and results stay in the store until the next group of any size."""
    killed = World(["all"] * 3)
    killed.train(range(1, 60), late=[2])
    store = killed.store
    left = {key for key in store.values if key != LIFE_KEY}
    world = World(["all"] * ranks, store, steps_before=[0] + [59] * (ranks - 1))
    world.round()
    world.step(1)
    world.round()
    assert late_of(world) == [[]] * ranks
    assert [each.result for each in world.rounds[1:]] == [None] * (ranks - 1)
    world.train(WITHIN[1:], late=[1])

    assert late_of(world) == [[1]] * ranks
    verdict = world.rounds[0].verdict
    assert verdict is not None
    assert (verdict["ranks"], verdict["absent"]) == ({"all": ranks}, 0)
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


def test_rank_that_does_not_step_in_the_new_group_is_left_out() -> None:
    """It may have trained before, and evaluate now."""
    world = World(["all"] * 3, steps_before=[50, 50, 50])
    for number in range(1, 50):
        world.step(number, late=[1])
        world.kept[2].waiting.clear()
        world.round()
    verdict = world.rounds[0].verdict

    assert verdict is not None
    assert (verdict["absent"], verdict["ranks"]) == (1, {"all": 2})
    assert late_of(world)[:2] == [[1], [1]]


def test_what_says_no_life_is_none() -> None:
    """The key may be another's."""
    world = World(["all"] * 2)
    world.store.values[LIFE_KEY] = b"\xffnot a life"
    world.step(1)
    world.round(absent=[0])
    assert set(world.store.values) == {LIFE_KEY}
    world.round()
    assert len(world.store.of_life()) > 0
