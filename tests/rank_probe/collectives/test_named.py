"""What is slow has one name, with all that is slow about it."""

from rank_probe.collectives.report import sentence, title
from rank_probe.collectives.verdict import Link, Named, named, suspects
from tests.rank_probe.collectives.worlds import hosts, pair_times


def names(
    where: tuple[str, ...],
    slower: dict[Link, float] | None = None,
    latency: dict[Link, float] | None = None,
) -> list[Named]:
    return named(suspects(pair_times(where, slower, latency), where), where)


def test_link_that_is_slow_both_ways_is_one_link() -> None:
    """Both directions and the latency stand in one sentence."""
    (link,) = names(hosts(1, 4), {(1, 3): 4.0, (3, 1): 2.0}, {(1, 3): 10.0})

    assert sentence(link) == (
        "the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "latency 200 µs against 20.0 µs (10.0 times); "
        "bandwidth from 1 to 3 2.50 GB/s against 10.0 GB/s (4.0 times); "
        "bandwidth from 3 to 1 5.00 GB/s against 10.0 GB/s (2.0 times)"
    )


def test_rank_whose_links_are_all_slow_is_named() -> None:
    """Its own link is what they share."""
    (rank,) = names(hosts(4, 1), {(2, other): 5.0 for other in (0, 1, 3)})

    assert (rank.kind, rank.ranks) == ("rank", (2,))
    assert sentence(rank) == (
        "rank 2's link (n2) is slow between nodes: sends at 200 MB/s against 1.00 GB/s (5.0 times)"
    )


def test_node_whose_ranks_are_all_slow_is_named() -> None:
    """Two slow ranks on one node of three are one node."""
    where = hosts(3, 2)
    out: dict[Link, float] = {(rank, other): 5.0 for rank in (2, 3) for other in (0, 1, 4, 5)}
    (node,) = names(where, out)

    assert (node.kind, node.ranks, title(node)) == ("node", (2, 3), "node n1")


def test_slowest_comes_first() -> None:
    """Two links that are slow in their own ways are two names."""
    first, second = names(hosts(1, 8), {(0, 1): 3.0, (4, 6): 9.0})

    assert (first.ranks, second.ranks) == ((4, 6), (0, 1))
