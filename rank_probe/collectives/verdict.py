"""Which link, rank or node stands out from those that should be as fast.

Links inside nodes are compared with links inside nodes, links between nodes with links between
nodes. A cost is seconds of latency, or seconds per byte; twice the cost is twice as slow.

A rank is judged by its fastest link, which is slow only if they all are. Then each link is judged,
less by what its ranks are slower. An outlier is further from the median than
several robust standard deviations (1.4826 * MAD, of logarithms) and by a factor that matters. A
median holds only while fewer than half are slow.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar

Measure = Literal["latency", "bandwidth"]
Scope = Literal["intra-node", "inter-node"]
Kind = Literal["node", "rank", "link"]
# The lower rank first.
Pair = tuple[int, int]
# Sender, receiver.
Link = tuple[int, int]
Costs = Mapping[Link, float]
SCOPES: Final[tuple[Scope, ...]] = ("intra-node", "inter-node")
Key = TypeVar("Key", bound=Hashable)

# Half of a link's lanes, or a link of one generation before, cost twice as much. Latencies also
# differ by the path through a healthy node.
FACTORS: Final[Mapping[Measure, float]] = {"latency": 2.0, "bandwidth": 1.5}
DEVIATIONS: Final = 5.0
# The factor alone is reason enough to measure again.
DOUBT_DEVIATIONS: Final = 0.0
# Of a rank that may be slow, the fastest tell: it is slow only if they are.
LINKS_OF_A_RANK: Final = 6
MAD_TO_DEVIATION: Final = 1.4826
# With fewer there is no median to be far from.
FEWEST: Final = 3
# Of the comparable links; more are how the machine is wired, not broken links.
MOST_SLOW_LINKS: Final = 1 / 3
ENDS: Final[Mapping[str, Callable[[Link], int]]] = {
    "sends": lambda link: link[0],
    "receives": lambda link: link[1],
}


class PairTime(NamedTuple):
    """What *first* measured with *second*, both ranks: first deciles over repetitions.

    *latency_seconds* is half of the time there and back of a small message. *there* and *back* are
    bytes per second of a large one, from first to second and from second to first, less the latency
    of the small message that goes the other way.
    """

    first: int
    second: int
    latency_seconds: float
    there: float
    back: float

    @property
    def pair(self) -> Pair:
        """Both ranks."""
        return self.first, self.second


class SlowReading(NamedTuple):
    """What stands out in one *measure*: *ranks* is one rank, or sender and receiver of a link.

    *way* is `sends` or `receives` for a rank, else empty. *value* and *typical*, which is the
    median of its like, are seconds or bytes per second; *factor* is how many times slower it is.
    """

    measure: Measure
    scope: Scope
    ranks: tuple[int, ...]
    way: str
    value: float
    typical: float
    factor: float


class Finding(NamedTuple):
    """One slow link, rank or node: its *ranks* (two for a link), its *hosts*, and what is *slow*.

    Of *slow*, latency is the same both ways: its ranks are in order, and its way is empty.
    """

    kind: Kind
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    scope: Scope
    slow: tuple[SlowReading, ...]


def scope_of(link: Link, hosts: Sequence[str]) -> Scope:
    """Return whether *link* stays inside a node."""
    return "intra-node" if hosts[link[0]] == hosts[link[1]] else "inter-node"


def slow_readings(
    times: Sequence[PairTime], hosts: Sequence[str], noise: Mapping[Measure, float] | None = None
) -> list[SlowReading]:
    """Return all that stands out, ranks before links.

    *noise* says by which factor one reading of a pair is slower than its best. An outlier must be
    slower by more than the square of it, on top of all else.
    """
    return [
        one
        for measure, scope, like in _scopes(times, hosts)
        for one in _in_one_scope(measure, scope, like, (noise or {}).get(measure, 1.0) ** 2)
    ]


def doubtful(times: Sequence[PairTime], hosts: Sequence[str]) -> list[Pair]:
    """Return the pairs that may be slow, or are those of a rank that may be, the worst first.

    This is suspicious on purpose: what it finds is measured again.
    """
    found: dict[Pair, float] = {}
    for measure, _, like in _scopes(times, hosts):
        slow = outliers(like, FACTORS[measure], DOUBT_DEVIATIONS)
        doubts = {link: like[link] / typical for link, typical in slow.items()}
        for end in ENDS.values():
            theirs = _by_rank(like, end)
            best = _best_by_rank(like, end)
            for rank, typical in outliers(best, FACTORS[measure], DOUBT_DEVIATIONS).items():
                fastest = sorted(theirs[rank], key=lambda link: theirs[rank][link])
                doubts |= {link: best[rank] / typical for link in fastest[:LINKS_OF_A_RANK]}
        for link, factor in doubts.items():
            pair = (min(link), max(link))
            found[pair] = max(found.get(pair, 0.0), factor)
    return sorted(found, key=lambda pair: (-found[pair], pair))


def _scopes(
    times: Sequence[PairTime], hosts: Sequence[str]
) -> Iterator[tuple[Measure, Scope, dict[Link, float]]]:
    """Yield the costs of the links that are comparable, in both directions."""
    for measure in FACTORS:
        for scope in SCOPES:
            like: dict[Link, float] = {}
            for one in times:
                if scope_of(one.pair, hosts) == scope:
                    both = one.latency_seconds, one.latency_seconds
                    there, back = both if measure == "latency" else (1 / one.there, 1 / one.back)
                    like |= {(one.first, one.second): there, (one.second, one.first): back}
            yield measure, scope, like


def _in_one_scope(
    measure: Measure, scope: Scope, like: Costs, allowance: float
) -> list[SlowReading]:
    found: list[SlowReading] = []
    rest = dict(like)
    for way, end in ENDS.items():
        best = _best_by_rank(like, end)
        for rank, typical in outliers(best, FACTORS[measure] * allowance).items():
            found.append(_slow(measure, scope, (rank,), way, best[rank], typical))
            for link in rest:
                if end(link) == rank:  # What is left is what is wrong with the link itself.
                    rest[link] *= typical / best[rank]
    slow = outliers(rest, FACTORS[measure] * allowance)
    if len(slow) <= MOST_SLOW_LINKS * len(like):
        found += [_slow(measure, scope, link, "", like[link], slow[link]) for link in slow]
    return found


def _slow(
    measure: Measure, scope: Scope, ranks: tuple[int, ...], way: str, cost: float, typical: float
) -> SlowReading:
    value, usual = (cost, typical) if measure == "latency" else (1 / cost, 1 / typical)
    return SlowReading(measure, scope, ranks, way, value, usual, cost / typical)


def _best_by_rank(like: Costs, end: Callable[[Link], int]) -> dict[int, float]:
    """Return the cost of each rank's fastest link, of the ranks that have several."""
    theirs = _by_rank(like, end)
    return {rank: min(own.values()) for rank, own in theirs.items() if len(own) > 1}


def outliers(
    values: Mapping[Key, float], factor: float, deviations: float = DEVIATIONS
) -> dict[Key, float]:
    """Return the keys whose values stand out above the others, each with the median."""
    if len(values) < FEWEST:
        return {}
    logs = {key: math.log(value) for key, value in values.items()}
    middle = statistics.median(logs.values())
    deviation = MAD_TO_DEVIATION * statistics.median(abs(each - middle) for each in logs.values())
    limit = middle + max(math.log(factor), deviations * deviation)
    return {key: math.exp(middle) for key, each in logs.items() if each > limit}


def _by_rank(like: Costs, end: Callable[[Link], int]) -> dict[int, dict[Link, float]]:
    found: dict[int, dict[Link, float]] = {}
    for link, cost in like.items():
        found.setdefault(end(link), {})[link] = cost
    return found


def findings(found: Sequence[SlowReading], hosts: Sequence[str]) -> list[Finding]:
    """Return each subject of *found* once, the slowest first."""
    subjects: dict[tuple[Scope, tuple[int, ...]], list[SlowReading]] = {}
    for one in found:
        subjects.setdefault((one.scope, tuple(sorted(one.ranks))), []).append(one)
    result: list[Finding] = []
    for scope in SCOPES:
        for host in dict.fromkeys(hosts):
            ranks = tuple(rank for rank, its in enumerate(hosts) if its == host)
            # A node with several ranks, all of which are slow.
            if 1 < len(ranks) < len(hosts) and all((scope, (rank,)) in subjects for rank in ranks):
                theirs = [one for rank in ranks for one in subjects.pop((scope, (rank,)))]
                result.append(Finding("node", ranks, (host,), scope, _worst(theirs)))
    for (scope, ranks), theirs in subjects.items():
        where = tuple(hosts[rank] for rank in ranks)
        kind: Kind = "rank" if len(ranks) == 1 else "link"
        result.append(Finding(kind, ranks, where, scope, _worst(theirs)))
    return sorted(result, key=lambda one: -max(each.factor for each in one.slow))


def _worst(found: Iterable[SlowReading]) -> tuple[SlowReading, ...]:
    """Return the worst reading of each kind, latency first."""
    worst: dict[tuple[bool, str, tuple[int, ...]], SlowReading] = {}
    for one in sorted(found, key=lambda one: one.factor):
        if one.measure == "latency":
            worst[False, "", ()] = one._replace(ranks=tuple(sorted(one.ranks)), way="")
        else:
            worst[True, one.way, one.ranks if len(one.ranks) == 2 else ()] = one
    return tuple(one for _, one in sorted(worst.items()))
