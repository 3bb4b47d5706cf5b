"""Tests of what is killed when."""

from collections import Counter

from benchmarks.faults.kills import bursts
from benchmarks.faults.plan import Plan, kills


def test_same_seed_is_the_same_plan() -> None:
    """A run that found something can be run again; another seed is another run."""
    assert list(kills(Plan(seed=3))) == list(kills(Plan(seed=3)))
    assert list(kills(Plan(seed=3))) != list(kills(Plan(seed=4)))


def test_every_part_has_its_share() -> None:
    """Of 200 kills each part has 40, the ranks together as many as any other part."""
    parts = Counter(kill.part.partition(" ")[0] for kill in kills(Plan(kills=200)))

    assert parts == dict.fromkeys(("exporter", "NVML", "Prometheus", "Alertmanager", "rank"), 40)


def test_at_most_two_come_together() -> None:
    """A kill that follows another is in its burst, and the next one is not."""
    sizes = Counter(len(burst) for burst in bursts(kills(Plan(kills=200))))

    assert set(sizes) == {1, 2}
    assert sizes[1] + 2 * sizes[2] == 200
    assert [len(burst) for burst in bursts(kills(Plan(kills=8, follows=1.0)))] == [2, 2, 2, 2]
