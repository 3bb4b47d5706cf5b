"""What is measured again is what may be slow, and enough to compare it with."""

from rank_probe.collectives.measure import TIMES, alone, fastest, noise, to_repeat
from rank_probe.collectives.pairs import PairTime
from rank_probe.collectives.verdict import Link
from tests.rank_probe.collectives.worlds import hosts, pair_times


def test_without_doubt_nothing_is_repeated() -> None:
    """A healthy world is measured once."""
    assert to_repeat(pair_times(hosts(1, 8)), hosts(1, 8)) == []


def test_small_world_is_repeated_in_full() -> None:
    """The pairs of up to eight ranks are few enough."""
    where = hosts(1, 8)

    assert len(to_repeat(pair_times(where, {(0, 5): 3.0}), where)) == 28


def test_large_world_repeats_the_slow_and_some_of_their_ranks_others() -> None:
    """Each rank of a doubtful pair has other pairs, or a slow partner would look slow too."""
    where = hosts(1, 64)
    sends: dict[Link, float] = {(9, other): 3.0 for other in range(64)}
    pairs = to_repeat(pair_times(where, sends), where)
    doubts = {pair for pair in pairs if 9 in pair}
    partners = {rank for pair in doubts for rank in pair} - {9}

    assert len(doubts) >= 6
    assert len(pairs) < 60
    assert all(any(rank in pair for pair in set(pairs) - doubts) for rank in partners)


def test_pairs_take_turns_alone() -> None:
    """A spell of noise does not meet all readings of one pair."""
    assert alone([(0, 1), (2, 3)]) == [((0, 1),), ((2, 3),)] * TIMES


def test_fastest_of_each_reading_counts() -> None:
    """One time for each pair, whichever reading each part is from."""
    first = PairTime(0, 1, 2e-5, 10.0, 30.0, 1024)
    second = PairTime(0, 1, 1e-5, 20.0, 25.0, 2048)

    assert fastest([first, second]) == [PairTime(0, 1, 1e-5, 20.0, 30.0, 1024)]


def test_noise_is_the_usual_reading_over_the_best() -> None:
    """Of the median pair: one that is slow now and then does not hide what is slow always."""
    steady = [PairTime(0, 1, 1e-5, 10.0, 10.0, 1024)] * 3
    shaky = [PairTime(0, 2, seconds, 10.0, 10.0, 1024) for seconds in (1e-5, 9e-5, 8e-5)]
    double = [PairTime(1, 2, seconds, 10.0, 5.0, 1024) for seconds in (1e-5, 2e-5, 2e-5)]

    assert noise([*steady, *shaky, *double]) == {"latency": 2.0, "bandwidth": 1.0}
