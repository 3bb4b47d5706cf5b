"""What `rank-probe bench-collectives` prints: tables for people, or one JSON document."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.measurements.convention import algorithm_bandwidth, bus_bandwidth
from rank_probe.collectives.measurements.operations import CollectiveTime
from rank_probe.collectives.measurements.pairwise import PairTime
from rank_probe.collectives.measurements.rounds import pairs_of
from rank_probe.collectives.measurements.units import show_bandwidth, show_bytes, show_seconds
from rank_probe.collectives.verdict import SCOPES, Scope, scope_of
from rank_probe.version import __version__
from rank_probe.wire.document import as_document

# More pairs than this are for --json.
MOST_PAIRS_SHOWN = 28


def as_text(result: MeasuredLinks) -> str:
    """Return the tables; the last line says what stands out."""
    return "\n".join(_lines(result))


def as_json(result: MeasuredLinks) -> str:
    """Return *result* for scripts; docs/collectives.md describes the fields."""
    ranks = len(result.hosts)
    said: dict[str, Any] = {
        "slow": bool(result.named),
        "verdict": verdict(result),
        "named": [
            asdict(one) | {"title": one.title, "sentence": one.sentence()} for one in result.named
        ],
        "notes": list(result.notes),
        "probe": {"version": __version__},
        "backend": result.backend,
        "ranks": ranks,
        "hosts": list(result.hosts),
        "collectives": [
            asdict(one)
            | {
                "algorithm_bandwidth": algorithm_bandwidth(one.size_bytes, one.seconds),
                "bus_bandwidth": bus_bandwidth(one.collective, one.size_bytes, one.seconds, ranks),
            }
            for one in result.collectives
        ],
        "possible_pairs": pairs_of(ranks),
        "pairs": [_pair(one, result.hosts) for one in result.pairs],
        "measured_again": [_pair(one, result.hosts) for one in result.again],
    }
    return as_document("bench-collectives", said)


def verdict(result: MeasuredLinks) -> str:
    """Return one sentence: what is slow, or that nothing stands out, and the spread."""
    if result.named:
        return "; ".join(one.sentence() for one in result.named)
    if len(result.pairs) < 2:
        return "no link stands out: two ranks have one link, and nothing to compare it with"
    return f"no link stands out: {_spread(result)}"


def _spread(result: MeasuredLinks) -> str:
    parts = []
    for scope, pairs in by_scope(result.best, result.hosts).items():
        latency = [one.latency_seconds for one in pairs]
        bandwidth = [value for one in pairs for value in (one.there, one.back)]
        parts.append(
            f"of {_count(len(pairs))} {_where(scope)} the slowest has "
            f"{max(latency) / statistics.median(latency):.1f} times the median latency and "
            f"{min(bandwidth) / statistics.median(bandwidth):.0%} of the median bandwidth"
        )
    return "; ".join(parts)


def by_scope(pairs: Iterable[PairTime], hosts: Sequence[str]) -> dict[Scope, list[PairTime]]:
    """Return the pairs that are comparable with one another."""
    found: dict[Scope, list[PairTime]] = {scope: [] for scope in SCOPES}
    for one in pairs:
        found[scope_of((one.first, one.second), hosts)].append(one)
    return {scope: alike for scope, alike in found.items() if alike}


def _lines(result: MeasuredLinks) -> Iterator[str]:
    ranks, nodes = len(result.hosts), len(set(result.hosts))
    yield f"{ranks} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}, {result.backend}"
    yield ""
    header = ("collective", "size", "time", "quartiles", "algbw", "busbw", "repeated")
    yield from _table([header, *(_collective(one, ranks) for one in result.collectives)])
    yield ""
    yield from _pairs(result)
    yield ""
    yield from (f"note: {note}" for note in result.notes)
    if result.again:
        yield (
            f"note: measured {len(result.again)} pairs again, each alone on the machine, because "
            "some seemed slow"
        )
    if result.named:
        yield from (f"slow: {one.sentence()}" for one in result.named)
    else:
        yield f"ok: {verdict(result)}"


def _collective(one: CollectiveTime, ranks: int) -> tuple[str, ...]:
    return (
        one.collective,
        show_bytes(one.size_bytes),
        show_seconds(one.seconds),
        f"{show_seconds(one.q1_seconds)} to {show_seconds(one.q3_seconds)}",
        show_bandwidth(algorithm_bandwidth(one.size_bytes, one.seconds)),
        show_bandwidth(bus_bandwidth(one.collective, one.size_bytes, one.seconds, ranks)),
        f"{one.repetitions} times",
    )


def _pairs(result: MeasuredLinks) -> Iterator[str]:
    possible = pairs_of(len(result.hosts))
    if len(result.pairs) < possible:
        yield (
            f"measured {len(result.pairs)} of {possible} pairs: a slow rank or node shows, a "
            "single slow link only if it is among them"
        )
    for scope, pairs in by_scope(result.best, result.hosts).items():
        bandwidth = [value for one in pairs for value in (one.there, one.back)]
        yield (
            f"{scope}: {_count(len(pairs))}, median latency "
            f"{show_seconds(statistics.median(one.latency_seconds for one in pairs))}, median "
            f"bandwidth {show_bandwidth(statistics.median(bandwidth))}"
        )
    if len(result.pairs) > MOST_PAIRS_SHOWN:
        yield "all pairs: see --json"
        return
    header = ("ranks", "latency", "there", "back", "messages", "scope")
    yield from _table([header, *(_row(one, result.hosts) for one in result.best)])


def _row(one: PairTime, hosts: Sequence[str]) -> tuple[str, ...]:
    return (
        f"{one.first} and {one.second}",
        show_seconds(one.latency_seconds),
        show_bandwidth(one.there),
        show_bandwidth(one.back),
        show_bytes(one.message_bytes),
        scope_of((one.first, one.second), hosts),
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()


def _pair(one: PairTime, hosts: Sequence[str]) -> dict[str, Any]:
    return asdict(one) | {"scope": scope_of((one.first, one.second), hosts)}


def _count(pairs: int) -> str:
    return "1 pair" if pairs == 1 else f"{pairs} pairs"


def _where(scope: Scope) -> str:
    return "between nodes" if scope == "inter-node" else "inside nodes"
