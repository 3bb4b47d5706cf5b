"""What stands out has one name; noise and the wiring of a healthy machine do not stand out."""

import pytest

from rank_probe.collectives.report import sentence
from rank_probe.collectives.verdict import Finding, Ranks, doubtful, findings, slow_readings
from tests.rank_probe.collectives.worlds import Slower, hosts, pair_times


def each(ranks: int, *senders: int, by: float = 3.0) -> Slower:
    """Make all that the *senders* send to others slower."""
    others = [rank for rank in range(ranks) if rank not in senders]
    return {(sender, other): by for sender in senders for other in others}


def both(*pairs: tuple[int, int]) -> Slower:
    return {link: 3.0 for pair in pairs for link in (pair, pair[::-1])}


@pytest.mark.parametrize(
    ("where", "slower", "found"),
    [
        # Half the bandwidth from 0 to 2 is not that from 2 to 0.
        *((hosts(1, ranks), {(0, 2): 2.0}, {((0, 2), "")}) for ranks in (3, 4, 8)),
        # Of four ranks half the links are those of the slow one, whose partners are not slow.
        *((hosts(1, ranks), each(ranks, 1), {((1,), "sends")}) for ranks in (3, 4, 8, 64)),
        # A third of the links may be slow, each way.
        (
            hosts(1, 4),
            both((0, 1), (2, 3)),
            {((0, 1), ""), ((1, 0), ""), ((2, 3), ""), ((3, 2), "")},
        ),
        # What the rank's other links have in common does not hide what one of them lacks.
        (
            hosts(1, 4),
            {(1, 0): 2.0, (1, 2): 2.0, (1, 3): 80.0},
            {((1,), "sends"), ((1, 3), "")},
        ),
        # Links between nodes are ten times slower than inside, and compared with their like.
        (hosts(2, 4), {}, set()),
        # Six GPUs on one switch and two on another: twelve of 28 pairs are no broken links.
        (hosts(1, 8), both(*((near, far) for near in range(6) for far in (6, 7))), set()),
        # Two ranks have nothing to compare with.
        (hosts(1, 2), {(0, 1): 50.0}, set()),
    ],
)
def test_bandwidth_that_stands_out(
    where: tuple[str, ...], slower: Slower, found: set[tuple[Ranks, str]]
) -> None:
    """A link is found each way; a rank by its fastest link."""
    slow = slow_readings(pair_times(where, slower), where)

    assert {one.measure for one in slow} <= {"bandwidth"}
    assert {(one.ranks, one.way) for one in slow} == found


@pytest.mark.parametrize(
    ("where", "latency", "found"),
    [
        *((hosts(1, ranks), {(1, 2): 3.0}, {((1, 2), ""), ((2, 1), "")}) for ranks in (3, 4, 8)),
        *(
            (
                hosts(1, ranks),
                {(min(1, other), max(1, other)): 5.0 for other in range(ranks)},
                {((1,), "sends"), ((1,), "receives")},
            )
            for ranks in (3, 4, 8, 64)
        ),
        # The only two ranks of a node: that both are slow says nothing about either.
        (hosts(4, 2), {(2, 3): 9.0}, {((2, 3), ""), ((3, 2), "")}),
    ],
)
def test_latency_that_stands_out(
    where: tuple[str, ...], latency: Slower, found: set[tuple[Ranks, str]]
) -> None:
    """It is the same both ways."""
    slow = slow_readings(pair_times(where, latency=latency), where)

    assert {one.measure for one in slow} == {"latency"}
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


def test_doubt_comes_before_suspicion() -> None:
    """A slow link in a noisy world is measured again, though it is not accused at once."""
    where = hosts(1, 4)
    times = pair_times(where, {(1, 3): 12.0, (3, 1): 12.0}, noise=0.6, seed=5)

    assert (1, 3) in doubtful(times, where)
    assert doubtful(pair_times(where), where) == []
    assert doubtful(pair_times(hosts(1, 2), {(0, 1): 50.0}), hosts(1, 2)) == []


def test_noise_raises_the_bar() -> None:
    """Where readings of one pair differ by three times, nine times slower is not enough."""
    where = hosts(1, 4)
    times = pair_times(where, latency={(1, 2): 12.0})

    assert len(slow_readings(times, where)) == 2
    assert slow_readings(times, where, {"latency": 3.0, "bandwidth": 1.0}) == []
    assert len(slow_readings(times, where, {"latency": 1.0, "bandwidth": 3.0})) == 2


def names(where: tuple[str, ...], slower: Slower, latency: Slower | None = None) -> list[Finding]:
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


@pytest.mark.parametrize(
    ("where", "slower", "kind", "ranks", "said"),
    [
        # Its own link is what they share.
        (
            *(hosts(4, 1), each(4, 2, by=5.0), "rank", (2,)),
            "rank 2's link (n2)",
        ),
        # Two slow ranks on one node of three are one node.
        (
            *(hosts(3, 2), each(6, 2, 3, by=5.0), "node", (2, 3)),
            "node n1",
        ),
    ],
)
def test_rank_or_node_whose_links_are_all_slow_is_named(
    where: tuple[str, ...], slower: Slower, kind: str, ranks: Ranks, said: str
) -> None:
    """Once, whatever they are slow at."""
    (one,) = names(where, slower)

    assert (one.kind, one.ranks) == (kind, ranks)
    assert sentence(one) == (
        f"{said} is slow between nodes: sends at 200 MB/s against 1 GB/s (5.0 times)"
    )


def test_slowest_comes_first() -> None:
    """Two links that are slow in their own ways are two names."""
    first, second = names(hosts(1, 8), {(0, 1): 3.0, (4, 6): 9.0})

    assert (first.ranks, second.ranks) == ((4, 6), (0, 1))
