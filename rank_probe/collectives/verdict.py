"""Which link, rank or node stands out from its like; docs/collectives.md says what is compared.

A cost is seconds of latency, or seconds per byte; twice the cost is twice as slow. A rank's cost is
that of its fastest link. An outlier exceeds the median by several robust standard deviations
(1.4826 * MAD, of logarithms), and by a factor that matters.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

Measure = Literal["latency", "bandwidth"]
Scope = Literal["intra-node", "inter-node"]
Kind = Literal["node", "rank", "link"]
# The lower rank first.
Pair = tuple[int, int]
# One rank; or the two of a link, the sender first.
Ranks = tuple[int, ...]
Costs = Mapping[Ranks, float]
SCOPES: Final[tuple[Scope, ...]] = ("intra-node", "inter-node")

# A link with half its lanes, or of the previous generation, costs twice as much. In a healthy node,
# latencies also differ by path.
FACTORS: Final[Mapping[Measure, float]] = {"latency": 2.0, "bandwidth": 1.5}
DEVIATIONS: Final = 5.0
# The fastest links to repeat for a doubtful rank, which is slow only if even they are.
LINKS_OF_A_RANK: Final = 6
# Fewer have no meaningful median.
FEWEST: Final = 3
# The share of comparable links; more slow links are the machine's wiring, not faults.
MOST_SLOW_LINKS: Final = 1 / 3
# The position in a link of the rank that is slow in this way.
ENDS: Final = {"sends": 0, "receives": 1}


class PairTime(NamedTuple):
    """What the first of two *ranks* measured with the second: first deciles over repetitions.

    *latency_seconds* is half of the time there and back of a small message. *there* and *back* are
    bytes per second of a large one, from first to second and from second to first, less the latency
    of the small message that goes the other way.
    """

    ranks: Pair
    latency_seconds: float
    there: float
    back: float


class SlowReading(NamedTuple):
    """What stands out in one *measure*: *ranks* is one rank, or sender and receiver of a link.

    *way* is `sends` or `receives` for a rank, else empty. *value* and *typical*, which is the
    median of its like, are seconds or bytes per second; *factor* is how many times slower it is.
    """

    measure: Measure
    scope: Scope
    ranks: Ranks
    way: str
    value: float
    typical: float
    factor: float


class Finding(NamedTuple):
    """One slow link, rank or node: its *ranks*, their *hosts*, each once, and what is *slow*.

    Of *slow*, latency is the same both ways: its ranks are in order, and its way is empty.
    """

    kind: Kind
    ranks: Ranks
    hosts: tuple[str, ...]
    scope: Scope
    slow: tuple[SlowReading, ...]


def scope_of(link: Ranks, hosts: Sequence[str]) -> Scope:
    """Return whether *link* stays inside a node."""
    return "intra-node" if hosts[link[0]] == hosts[link[1]] else "inter-node"


def slow_readings(
    times: Sequence[PairTime], hosts: Sequence[str], noise: Mapping[Measure, float] | None = None
) -> list[SlowReading]:
    """Return all outliers, ranks before links.

    *noise* is the factor by which a typical reading of a pair is slower than the pair's best. Its
    square multiplies the factor by which an outlier must be slower.
    """
    found: list[SlowReading] = []
    for measure, scope, like in _scopes(times, hosts):
        factor = FACTORS[measure] * (noise or {}).get(measure, 1.0) ** 2
        odd: list[tuple[Ranks, str, float, float]] = []
        rest = dict(like)
        for way, end in ENDS.items():
            best = _best_by_rank(like, end)
            for rank, typical in outliers(best, factor).items():
                odd.append((rank, way, best[rank], typical))
                for link in rest:
                    if link[end] == rank[0]:  # Leaves what the slow rank does not explain.
                        rest[link] *= typical / best[rank]
        slow = outliers(rest, factor)
        if len(slow) <= MOST_SLOW_LINKS * len(like):
            odd += [(link, "", like[link], typical) for link, typical in slow.items()]
        for ranks, way, cost, typical in odd:
            shown = (cost, typical) if measure == "latency" else (1 / cost, 1 / typical)
            found.append(SlowReading(measure, scope, ranks, way, *shown, cost / typical))
    return found


def doubtful(times: Sequence[PairTime], hosts: Sequence[str]) -> list[Pair]:
    """Return the pairs that may be slow, or belong to a rank that may be, the worst first.

    Tests the factor alone and is oversensitive on purpose: these pairs are measured again.
    """
    found: dict[Pair, float] = {}
    for measure, _, like in _scopes(times, hosts):
        slow = outliers(like, FACTORS[measure], deviations=0.0)
        doubts = {link: like[link] / typical for link, typical in slow.items()}
        fastest_first = sorted(like, key=lambda link: like[link])
        for end in ENDS.values():
            best = _best_by_rank(like, end)
            for rank, typical in outliers(best, FACTORS[measure], deviations=0.0).items():
                own = [link for link in fastest_first if link[end] == rank[0]]
                doubts |= dict.fromkeys(own[:LINKS_OF_A_RANK], best[rank] / typical)
        for link, factor in doubts.items():
            pair = (min(link), max(link))
            found[pair] = max(found.get(pair, 0.0), factor)
    return sorted(found, key=lambda pair: (-found[pair], pair))


def _scopes(
    times: Sequence[PairTime], hosts: Sequence[str]
) -> Iterator[tuple[Measure, Scope, Costs]]:
    """Yield the costs of the links that are comparable, in both directions."""
    for measure in FACTORS:
        for scope in SCOPES:
            like: dict[Ranks, float] = {}
            for one in times:
                if scope_of(one.ranks, hosts) == scope:
                    both = one.latency_seconds, one.latency_seconds
                    there, back = both if measure == "latency" else (1 / one.there, 1 / one.back)
                    like |= {one.ranks: there, one.ranks[::-1]: back}
            yield measure, scope, like


def _best_by_rank(like: Costs, end: int) -> Costs:
    """Return the cost of the fastest link of each rank that has several links."""
    theirs: dict[Ranks, list[float]] = {}
    for link, cost in like.items():
        theirs.setdefault((link[end],), []).append(cost)
    return {rank: min(costs) for rank, costs in theirs.items() if len(costs) > 1}


def outliers(costs: Costs, factor: float, deviations: float = DEVIATIONS) -> Costs:
    """Return the ranks or links whose costs stand out above the others, each with the median."""
    if len(costs) < FEWEST:
        return {}
    logs = {ranks: math.log(cost) for ranks, cost in costs.items()}
    middle = statistics.median(logs.values())
    deviation = 1.4826 * statistics.median(abs(each - middle) for each in logs.values())
    limit = middle + max(math.log(factor), deviations * deviation)
    return {ranks: math.exp(middle) for ranks, each in logs.items() if each > limit}


def findings(found: Sequence[SlowReading], hosts: Sequence[str]) -> list[Finding]:
    """Return each subject of *found* once, the slowest first."""
    subjects: dict[tuple[Kind, Scope, Ranks], list[SlowReading]] = {}
    for one in found:
        kind: Kind = "link" if len(one.ranks) == 2 else "rank"
        subjects.setdefault((kind, one.scope, tuple(sorted(one.ranks))), []).append(one)
    for scope in SCOPES:
        for host in dict.fromkeys(hosts):
            ranks = tuple(rank for rank, its in enumerate(hosts) if its == host)
            own: list[tuple[Kind, Scope, Ranks]] = [("rank", scope, (rank,)) for rank in ranks]
            # A node with several ranks, all of which are slow.
            if 1 < len(ranks) < len(hosts) and subjects.keys() >= set(own):
                subjects["node", scope, ranks] = [one for key in own for one in subjects.pop(key)]
    named = []
    for (kind, scope, ranks), readings in subjects.items():
        where = tuple(dict.fromkeys(hosts[rank] for rank in ranks))
        named.append(Finding(kind, ranks, where, scope, _worst(readings)))
    return sorted(named, key=lambda one: -max(each.factor for each in one.slow))


def _worst(found: Iterable[SlowReading]) -> tuple[SlowReading, ...]:
    """Return the worst reading of each kind, latency first."""
    worst: dict[tuple[bool, str, Ranks], SlowReading] = {}
    for one in sorted(found, key=lambda one: one.factor):
        if one.measure == "latency":
            worst[False, "", ()] = one._replace(ranks=tuple(sorted(one.ranks)), way="")
        else:
            worst[True, one.way, one.ranks if len(one.ranks) == 2 else ()] = one
    return tuple(one for _, one in sorted(worst.items()))
