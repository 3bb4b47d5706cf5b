"""What is measured, and again; what stands out has one name, and noise does not stand out."""

import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from rank_probe.collectives.measure import (
    FEWEST,
    MOST,
    CollectiveTime,
    fastest,
    noise,
    repetitions_in,
    rounds,
    sizes_up_to,
    timed,
    to_repeat,
)
from rank_probe.collectives.report import sentence
from rank_probe.collectives.verdict import (
    Finding,
    PairTime,
    Ranks,
    doubtful,
    findings,
    slow_readings,
)
from tests.rank_probe.collectives.worlds import Slower, hosts, pair_times


@pytest.mark.parametrize(
    ("of", "arguments", "expected"),
    [
        # A rank's share is rounded down to 16 bytes, as nccl-tests does, and is never empty.
        (sizes_up_to, (2**20, 4), [2**12, 2**14, 2**16, 2**18, 2**20]),
        (sizes_up_to, (4096, 3), [3 * 1360]),
        (sizes_up_to, (100, 2), [96]),
        (sizes_up_to, (8, 4), [64]),
        # Few repetitions of what is slow, but enough for a median.
        (repetitions_in, (1.0, 0.01), 100),
        (repetitions_in, (1.0, 10.0), FEWEST),
        (repetitions_in, (10.0, 1e-6), MOST),
        (repetitions_in, (1.0, 0.0), MOST),
        # 1 GB in a second over eight ranks.
        (CollectiveTime("all_reduce", 10**9, 1.0).bus_bandwidth, (8,), 1.75e9),
        (CollectiveTime("all_gather", 10**9, 1.0).bus_bandwidth, (8,), 0.875e9),
        (CollectiveTime("reduce_scatter", 10**9, 1.0).bus_bandwidth, (8,), 0.875e9),
    ],
)
def test_what_is_measured(
    of: Callable[..., Any], arguments: tuple[Any, ...], expected: Any
) -> None:
    """Sizes that grow by the factor, repetitions that fill the time, the bus of nccl-tests."""
    assert of(*arguments) == expected


@pytest.mark.parametrize("ranks", [*range(2, 10), 64])
def test_every_pair_meets(ranks: int) -> None:
    """Every pair is measured once, in as few rounds as can be."""
    found = rounds(ranks)

    assert sorted(pair for each in found for pair in each) == list(combinations(range(ranks), 2))
    assert len(found) == (ranks - 1 if ranks % 2 == 0 else ranks)
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in found)


def test_each_repetition_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the end of the one before, so nothing between them is lost."""
    now = [0.0]
    takes = iter((1.0, 4.0, 2.0))
    monkeypatch.setattr(time, "perf_counter", lambda: now[-1])

    assert timed(lambda: now.append(now[-1] + next(takes)), 3, on_gpu=False) == [1.0, 4.0, 2.0]


def test_what_seems_slow_is_repeated_beside_others_of_its_ranks() -> None:
    """Or a slow partner would look slow too; a healthy world is measured once, a small in full."""
    times: list[tuple[dict[tuple[int, ...], float], int]] = [({}, 0), ({(0, 5): 3.0}, 28)]
    for slow, pairs in times:
        assert len(to_repeat(pair_times(hosts(1, 8), slow), hosts(1, 8))) == pairs
    where = hosts(1, 64)
    repeated = to_repeat(pair_times(where, {(9, other): 3.0 for other in range(64)}), where)
    doubts = {pair for pair in repeated if 9 in pair}
    partners = {rank for pair in doubts for rank in pair} - {9}

    assert len(doubts) >= 6
    assert len(repeated) < 100
    assert all(any(rank in pair for pair in set(repeated) - doubts) for rank in partners)


def test_readings_of_a_pair_are_its_fastest_and_their_noise() -> None:
    """Noise is of the median pair: slow now and then does not hide what is slow always."""
    steady = [PairTime((0, 1), 1e-5, 10.0, 10.0)] * 3
    shaky = [PairTime((0, 2), seconds, 10.0, 10.0) for seconds in (1e-5, 9e-5, 8e-5)]
    double = [PairTime((1, 2), seconds, 10.0, 5.0) for seconds in (1e-5, 2e-5, 2e-5)]
    two = [PairTime((0, 1), 2e-5, 10.0, 30.0), PairTime((0, 1), 1e-5, 20.0, 25.0)]

    assert noise([*steady, *shaky, *double]) == {"latency": 2.0, "bandwidth": 1.0}
    assert fastest(two) == [PairTime((0, 1), 1e-5, 20.0, 30.0)]


def each(ranks: int, *senders: int, by: float = 3.0) -> Slower:
    """Make all that the *senders* send to others slower."""
    others = [rank for rank in range(ranks) if rank not in senders]
    return {(sender, other): by for sender in senders for other in others}


def both(*pairs: tuple[int, int]) -> dict[Ranks, float]:
    return {link: 3.0 for pair in pairs for link in (pair, pair[::-1])}


def around(ranks: int) -> Slower:
    """Make the latency of rank 1 longer."""
    return {(min(1, other), max(1, other)): 5.0 for other in range(ranks)}


SENDS, RECEIVES = ((1,), "sends"), ((1,), "receives")


@pytest.mark.parametrize(
    ("where", "slower", "latency", "found"),
    [
        # A link is found each way: half the bandwidth from 0 to 2 is not that from 2 to 0.
        *((hosts(1, ranks), {(0, 2): 2.0}, {}, {((0, 2), "")}) for ranks in (3, 4, 8)),
        # Of four ranks half the links are those of the slow one, whose partners are not slow.
        *((hosts(1, ranks), each(ranks, 1), {}, {SENDS}) for ranks in (3, 4, 8, 64)),
        # A third of the links may be slow, each way.
        (hosts(1, 4), both((0, 1), (2, 3)), {}, {(link, "") for link in both((0, 1), (2, 3))}),
        # What the rank's other links have in common does not hide what one of them lacks.
        (hosts(1, 4), {(1, 0): 2.0, (1, 2): 2.0, (1, 3): 80.0}, {}, {SENDS, ((1, 3), "")}),
        # Links between nodes are ten times slower than inside, and compared with their like.
        (hosts(2, 4), {}, {}, set()),
        # Six GPUs on one switch and two on another: twelve of 28 pairs are no broken links.
        (hosts(1, 8), both(*((near, far) for near in range(6) for far in (6, 7))), {}, set()),
        # Two ranks have nothing to compare with.
        (hosts(1, 2), {(0, 1): 50.0}, {}, set()),
        # Latency is the same both ways.
        *((hosts(1, n), {}, {(1, 2): 3.0}, {((1, 2), ""), ((2, 1), "")}) for n in (3, 4, 8)),
        *((hosts(1, ranks), {}, around(ranks), {SENDS, RECEIVES}) for ranks in (3, 4, 8, 64)),
        # The only two ranks of a node: that both are slow says nothing about either.
        (hosts(4, 2), {}, {(2, 3): 9.0}, {((2, 3), ""), ((3, 2), "")}),
    ],
)
def test_reading_that_stands_out(
    where: tuple[str, ...], slower: Slower, latency: Slower, found: set[tuple[Ranks, str]]
) -> None:
    """Among its like; a rank by its fastest link."""
    slow = slow_readings(pair_times(where, slower, latency), where)

    assert {one.measure for one in slow} <= {"latency" if latency else "bandwidth"}
    assert {(one.ranks, one.way) for one in slow} == found


def test_rank_that_is_slow_between_nodes_only() -> None:
    """Its own network port, and not its place in the node."""
    where = hosts(3, 4)
    port: Slower = {(5, other): 4.0 for other in (*range(4), *range(8, 12))}
    (suspect,) = slow_readings(pair_times(where, port), where)

    assert (suspect.scope, suspect.ranks, suspect.way) == ("inter-node", (5,), "sends")
    assert suspect.factor == pytest.approx(4.0)


def test_healthy_worlds_are_rarely_accused() -> None:
    """Noise of a fifth on every reading accuses one world in fifty at the most, on one reading."""
    accused = 0
    for seed in range(300):
        where = hosts(1, 4 + seed % 5)
        accused += bool(slow_readings(pair_times(where, noise=0.2, seed=seed), where))

    assert accused <= 6


def test_noise_raises_the_bar_and_doubt_comes_before_suspicion() -> None:
    """Where readings of one pair differ by three times, nine times slower is not enough.

    A slow link in a noisy world is measured again, though it is not accused at once.
    """
    where = hosts(1, 4)
    times = pair_times(where, latency={(1, 2): 12.0})

    assert len(slow_readings(times, where)) == 2
    assert slow_readings(times, where, {"latency": 3.0, "bandwidth": 1.0}) == []
    assert len(slow_readings(times, where, {"latency": 1.0, "bandwidth": 3.0})) == 2
    noisy = pair_times(where, {(1, 3): 12.0, (3, 1): 12.0}, noise=0.6, seed=5)
    assert (1, 3) in doubtful(noisy, where)
    assert doubtful(pair_times(where), where) == []
    assert doubtful(pair_times(hosts(1, 2), {(0, 1): 50.0}), hosts(1, 2)) == []


def names(where: tuple[str, ...], slower: Slower, latency: Slower | None = None) -> list[Finding]:
    return findings(slow_readings(pair_times(where, slower, latency), where), where)


def test_link_that_is_slow_both_ways_is_one_link() -> None:
    """Both directions and the latency stand in one sentence; the slowest comes first."""
    (link,) = names(hosts(1, 4), {(1, 3): 4.0, (3, 1): 2.0}, {(1, 3): 10.0})
    two = names(hosts(1, 8), {(0, 1): 3.0, (4, 6): 9.0})

    assert sentence(link) == (
        "the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "latency 200 µs against 20 µs (10.0 times); "
        "bandwidth from 1 to 3 2.5 GB/s against 10 GB/s (4.0 times); "
        "bandwidth from 3 to 1 5 GB/s against 10 GB/s (2.0 times)"
    )
    assert [one.ranks for one in two] == [(4, 6), (0, 1)]


@pytest.mark.parametrize(
    ("where", "slow", "kind", "said"),
    [
        # Its own link is what they share.
        (hosts(4, 1), (2,), "rank", "rank 2's link (n2)"),
        # Two slow ranks on one node of three are one node.
        (hosts(3, 2), (2, 3), "node", "node n1"),
    ],
)
def test_rank_or_node_whose_links_are_all_slow_is_named(
    where: tuple[str, ...], slow: Ranks, kind: str, said: str
) -> None:
    """Once, whatever they are slow at."""
    (one,) = names(where, each(len(where), *slow, by=5.0))

    assert (one.kind, one.ranks) == (kind, slow)
    assert sentence(one) == (
        f"{said} is slow between nodes: sends at 200 MB/s against 1 GB/s (5.0 times)"
    )
