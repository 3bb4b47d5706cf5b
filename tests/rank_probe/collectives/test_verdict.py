"""What stands out has one name; noise and the wiring of a healthy machine do not stand out."""

import pytest

from rank_probe.collectives.report import sentence
from rank_probe.collectives.verdict import (
    Finding,
    Link,
    PairTime,
    doubtful,
    findings,
    slow_readings,
)
from tests.rank_probe.collectives.worlds import hosts, pair_times


def found(times: list[PairTime], where: tuple[str, ...]) -> set[tuple[str, tuple[int, ...], str]]:
    return {(one.measure, one.ranks, one.way) for one in slow_readings(times, where)}


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_slow_link_is_found_each_way(ranks: int) -> None:
    """Half the bandwidth from 0 to 2 is not that from 2 to 0."""
    where = hosts(1, ranks)

    assert found(pair_times(where, {(0, 2): 2.0}), where) == {("bandwidth", (0, 2), "")}
    assert found(pair_times(where, latency={(1, 2): 3.0}), where) == {
        ("latency", (1, 2), ""),
        ("latency", (2, 1), ""),
    }


@pytest.mark.parametrize("ranks", [3, 4, 8, 64])
def test_slow_rank_is_found_and_its_partners_are_not(ranks: int) -> None:
    """Of four ranks half the links are those of the slow one."""
    where = hosts(1, ranks)
    sends: dict[Link, float] = {(1, other): 3.0 for other in range(ranks)}
    late = {tuple(sorted((1, other))): 5.0 for other in range(ranks)}

    assert found(pair_times(where, sends), where) == {("bandwidth", (1,), "sends")}
    assert found(pair_times(where, latency={(a, b): by for (a, b), by in late.items()}), where) == {
        ("latency", (1,), "sends"),
        ("latency", (1,), "receives"),
    }


def test_two_slow_links_of_four_ranks_are_found() -> None:
    """A third of the links may be slow, each way."""
    where = hosts(1, 4)
    both: dict[Link, float] = {(0, 1): 3.0, (1, 0): 3.0, (2, 3): 3.0, (3, 2): 3.0}

    assert {one.ranks for one in slow_readings(pair_times(where, both), where)} == set(both)


def test_rank_that_is_slow_between_nodes_only() -> None:
    """Its own network port, and not its place in the node."""
    where = hosts(3, 4)
    port: dict[Link, float] = {(5, other): 4.0 for other in (*range(4), *range(8, 12))}
    (suspect,) = slow_readings(pair_times(where, port), where)

    assert (suspect.scope, suspect.ranks, suspect.way) == ("inter-node", (5,), "sends")
    assert suspect.factor == pytest.approx(4.0)


def test_far_nodes_are_not_slow_links() -> None:
    """Links between nodes are ten times slower than inside, and compared with their like."""
    where = hosts(2, 4)

    assert slow_readings(pair_times(where), where) == []


def test_two_groups_of_links_are_wiring() -> None:
    """Six GPUs on one switch and two on another: twelve of 28 pairs are no broken links."""
    where = hosts(1, 8)
    across: dict[Link, float] = {}
    for near in range(6):
        across |= {(near, 6): 3.0, (6, near): 3.0, (near, 7): 3.0, (7, near): 3.0}

    assert slow_readings(pair_times(where, across), where) == []


def test_one_pair_has_nothing_to_compare_with() -> None:
    """Two ranks are never judged, nor measured again."""
    times = pair_times(hosts(1, 2), {(0, 1): 50.0})

    assert slow_readings(times, hosts(1, 2)) == []
    assert doubtful(times, hosts(1, 2)) == []


def test_rank_with_one_partner_is_a_link() -> None:
    """The only two ranks of a node: that both are slow says nothing about either."""
    where = hosts(4, 2)

    assert found(pair_times(where, latency={(2, 3): 9.0}), where) == {
        ("latency", (2, 3), ""),
        ("latency", (3, 2), ""),
    }


def test_healthy_worlds_are_rarely_accused() -> None:
    """Noise of a fifth on every reading accuses one world in fifty at the most, on one reading."""
    accused = 0
    for seed in range(300):
        where = hosts(1, 4 + seed % 5)
        accused += bool(slow_readings(pair_times(where, noise=0.2, seed=seed), where))

    assert accused <= 6


def test_doubt_comes_before_suspicion() -> None:
    """A slow link in a noisy world is measured again, though it is not accused at once."""
    where = hosts(1, 4)
    times = pair_times(where, {(1, 3): 12.0, (3, 1): 12.0}, noise=0.6, seed=5)

    assert (1, 3) in doubtful(times, where)
    assert doubtful(pair_times(where), where) == []


def test_slow_link_of_a_slow_rank_is_found_too() -> None:
    """What the rank's other links have in common does not hide what one of them lacks."""
    where = hosts(1, 4)
    out: dict[Link, float] = {(1, 0): 2.0, (1, 2): 2.0, (1, 3): 80.0}

    assert found(pair_times(where, out), where) == {
        ("bandwidth", (1,), "sends"),
        ("bandwidth", (1, 3), ""),
    }


def test_noise_raises_the_bar() -> None:
    """Where readings of one pair differ by three times, nine times slower is not enough."""
    where = hosts(1, 4)
    times = pair_times(where, latency={(1, 2): 12.0})

    assert len(slow_readings(times, where)) == 2
    assert slow_readings(times, where, {"latency": 3.0, "bandwidth": 1.0}) == []
    assert len(slow_readings(times, where, {"latency": 1.0, "bandwidth": 3.0})) == 2


def names(
    where: tuple[str, ...],
    slower: dict[Link, float] | None = None,
    latency: dict[Link, float] | None = None,
) -> list[Finding]:
    return findings(slow_readings(pair_times(where, slower, latency), where), where)


def test_link_that_is_slow_both_ways_is_one_link() -> None:
    """Both directions and the latency stand in one sentence."""
    (link,) = names(hosts(1, 4), {(1, 3): 4.0, (3, 1): 2.0}, {(1, 3): 10.0})

    assert sentence(link) == (
        "the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "latency 200 µs against 20 µs (10.0 times); "
        "bandwidth from 1 to 3 2.5 GB/s against 10 GB/s (4.0 times); "
        "bandwidth from 3 to 1 5 GB/s against 10 GB/s (2.0 times)"
    )


def test_rank_whose_links_are_all_slow_is_named() -> None:
    """Its own link is what they share."""
    (rank,) = names(hosts(4, 1), {(2, other): 5.0 for other in (0, 1, 3)})

    assert (rank.kind, rank.ranks) == ("rank", (2,))
    assert sentence(rank) == (
        "rank 2's link (n2) is slow between nodes: sends at 200 MB/s against 1 GB/s (5.0 times)"
    )


def test_node_whose_ranks_are_all_slow_is_named() -> None:
    """Two slow ranks on one node of three are one node."""
    where = hosts(3, 2)
    out: dict[Link, float] = {(rank, other): 5.0 for rank in (2, 3) for other in (0, 1, 4, 5)}
    (node,) = names(where, out)

    assert (node.kind, node.ranks) == ("node", (2, 3))
    assert sentence(node).startswith("node n1 is slow between nodes: ")


def test_slowest_comes_first() -> None:
    """Two links that are slow in their own ways are two names."""
    first, second = names(hosts(1, 8), {(0, 1): 3.0, (4, 6): 9.0})

    assert (first.ranks, second.ranks) == ((4, 6), (0, 1))
