"""What `rank-probe bench-collectives` prints and writes: tables, one JSON document, or series."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.pairs import PairTime
from rank_probe.collectives.timing import CollectiveTime
from rank_probe.collectives.verdict import SCOPES, Named, Scope, Suspect, scope_of
from rank_probe.version import __version__
from rank_probe.wire.document import as_document

# More pairs than this are for --json.
MOST_PAIRS_SHOWN: Final = 28
# What three digits would round up to 1000 of the smaller unit.
ROUNDED_UP: Final = 0.9995
# node_exporter runs as a user of its own.
READABLE: Final = 0o644


def as_text(result: MeasuredLinks) -> str:
    """Return the tables; the last line says what stands out."""
    return "\n".join(_lines(result))


def as_json(result: MeasuredLinks) -> str:
    """Return *result* for scripts; docs/collectives.md describes the fields."""
    ranks = len(result.hosts)
    content: dict[str, Any] = {
        "slow": bool(result.named),
        "verdict": verdict(result),
        "named": [
            one._asdict()
            | {"slow": [_reading(each) for each in one.slow]}
            | {"title": title(one), "sentence": sentence(one)}
            for one in result.named
        ],
        "notes": list(result.notes),
        "probe": {"version": __version__},
        "backend": result.backend,
        "ranks": ranks,
        "hosts": list(result.hosts),
        "collectives": [
            one._asdict()
            | {"algorithm_bandwidth": one.algorithm_bandwidth}
            | {"bus_bandwidth": one.bus_bandwidth(ranks)}
            for one in result.collectives
        ],
        "possible_pairs": _possible(ranks),
        "pairs": [_pair(one, result.hosts) for one in result.pairs],
        "measured_again": [_pair(one, result.hosts) for one in result.again],
    }
    return as_document("bench-collectives", content)


def _reading(one: Suspect) -> dict[str, Any]:
    """Return a slow reading in seconds for latency, in bytes per second for bandwidth."""
    value, typical = _values(one)
    fields = {"measure": one.measure, "ranks": list(one.ranks), "way": one.way}
    return fields | {"value": value, "typical": typical, "factor": one.factor}


def _pair(one: PairTime, hosts: Sequence[str]) -> dict[str, Any]:
    return one._asdict() | {"scope": scope_of(one.pair, hosts)}


def verdict(result: MeasuredLinks) -> str:
    """Return one sentence: what is slow, or that nothing stands out, and the spread."""
    if result.named:
        return "; ".join(map(sentence, result.named))
    if len(result.pairs) < 2:
        return "no link stands out: two ranks have one link, and nothing to compare it with"
    parts = []
    for scope, pairs in by_scope(result.best, result.hosts).items():
        latency, bandwidth = _latencies(pairs), _bandwidths(pairs)
        parts.append(
            f"of {_count(pairs)} {_where(scope)} the slowest has "
            f"{max(latency) / statistics.median(latency):.1f} times the median latency and "
            f"{min(bandwidth) / statistics.median(bandwidth):.0%} of the median bandwidth"
        )
    return f"no link stands out: {'; '.join(parts)}"


def title(one: Named) -> str:
    """Return the name of what is slow."""
    where = ", ".join(dict.fromkeys(one.hosts))
    match one.kind:
        case "node":
            return f"node {where}"
        case "rank":
            return f"rank {one.ranks[0]}'s link ({where})"
        case "link":
            return f"the link between ranks {one.ranks[0]} and {one.ranks[1]} ({where})"


def sentence(one: Named) -> str:
    """Return its name and its readings."""
    return f"{title(one)} is slow {_where(one.scope)}: {'; '.join(map(_words, one.slow))}"


def _words(one: Suspect) -> str:
    value, typical = _values(one)
    show = show_seconds if one.measure == "latency" else show_bandwidth
    what = f"{one.way} at" if one.way else one.measure
    if one.measure == "bandwidth" and len(one.ranks) == 2:
        what = f"bandwidth from {one.ranks[0]} to {one.ranks[1]}"
    return f"{what} {show(value)} against {show(typical)} ({one.factor:.1f} times)"


def _values(one: Suspect) -> tuple[float, float]:
    if one.measure == "latency":
        return one.cost, one.typical
    return 1 / one.cost, 1 / one.typical


def by_scope(pairs: Iterable[PairTime], hosts: Sequence[str]) -> dict[Scope, list[PairTime]]:
    """Return the pairs that are comparable with one another."""
    found: dict[Scope, list[PairTime]] = {scope: [] for scope in SCOPES}
    for one in pairs:
        found[scope_of(one.pair, hosts)].append(one)
    return {scope: alike for scope, alike in found.items() if alike}


def _lines(result: MeasuredLinks) -> Iterator[str]:
    yield f"{ranks_on_nodes(result.hosts)}, {result.backend}"
    yield ""
    header = ("collective", "size", "time", "quartiles", "algbw", "busbw", "repeated")
    yield from _table([header, *(_row(one, len(result.hosts)) for one in result.collectives)])
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
        yield from (f"slow: {sentence(one)}" for one in result.named)
    else:
        yield f"ok: {verdict(result)}"


def ranks_on_nodes(hosts: Sequence[str]) -> str:
    """Return how many ranks there are on how many nodes."""
    nodes = len(set(hosts))
    return f"{len(hosts)} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}"


def _row(one: CollectiveTime, ranks: int) -> tuple[str, ...]:
    return (
        one.collective,
        show_bytes(one.size_bytes),
        show_seconds(one.seconds),
        f"{show_seconds(one.q1_seconds)} to {show_seconds(one.q3_seconds)}",
        show_bandwidth(one.algorithm_bandwidth),
        show_bandwidth(one.bus_bandwidth(ranks)),
        f"{one.repetitions} times",
    )


def _pairs(result: MeasuredLinks) -> Iterator[str]:
    possible = _possible(len(result.hosts))
    if len(result.pairs) < possible:
        yield (
            f"measured {len(result.pairs)} of {possible} pairs: a slow rank or node shows, a "
            "single slow link only if it is among them"
        )
    for scope, pairs in by_scope(result.best, result.hosts).items():
        latency, bandwidth = _latencies(pairs), _bandwidths(pairs)
        yield (
            f"{scope}: {_count(pairs)}, median latency "
            f"{show_seconds(statistics.median(latency))}, median "
            f"bandwidth {show_bandwidth(statistics.median(bandwidth))}"
        )
    if len(result.pairs) > MOST_PAIRS_SHOWN:
        yield "all pairs: see --json"
        return
    rows = [("ranks", "latency", "there", "back", "messages", "scope")]
    for one in result.best:
        there, back = show_bandwidth(one.there), show_bandwidth(one.back)
        cells = (show_seconds(one.latency_seconds), there, back, show_bytes(one.message_bytes))
        rows.append((f"{one.first} and {one.second}", *cells, scope_of(one.pair, result.hosts)))
    yield from _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()


def _latencies(pairs: Iterable[PairTime]) -> list[float]:
    return [one.latency_seconds for one in pairs]


def _bandwidths(pairs: Iterable[PairTime]) -> list[float]:
    return [value for one in pairs for value in (one.there, one.back)]


def _possible(ranks: int) -> int:
    return ranks * (ranks - 1) // 2


def _count(pairs: Sequence[PairTime]) -> str:
    return "1 pair" if len(pairs) == 1 else f"{len(pairs)} pairs"


def _where(scope: Scope) -> str:
    return "between nodes" if scope == "inter-node" else "inside nodes"


def show_bytes(size_bytes: int) -> str:
    """Return `4 KiB` for 4096."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"


def show_seconds(seconds: float) -> str:
    """Return three digits and the unit that fits."""
    return _shown(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))) or f"{seconds * 1e9:.0f} ns"


def show_bandwidth(bytes_per_second: float) -> str:
    """Return three digits and the decimal unit that fits, as nccl-tests does with GB/s."""
    units = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))
    return _shown(bytes_per_second, units) or f"{bytes_per_second:.2f} B/s"


def _shown(value: float, units: Iterable[tuple[str, float]]) -> str:
    for unit, factor in units:
        if value >= factor * ROUNDED_UP:
            digits = 0 if value >= 100 * factor else 1 if value >= 10 * factor else 2
            return f"{value / factor:.{digits}f} {unit}"
    return ""


def write_textfile(path: Path, result: MeasuredLinks) -> None:
    """Put the series into *path* at once, so that nobody reads half of them; raises OSError."""
    text = as_prometheus(result, time.time())
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        file.write(text)
    try:
        os.chmod(file.name, READABLE)
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


def as_prometheus(result: MeasuredLinks, now: float) -> str:
    """Return the series of *result*, which ended at the Unix time *now*."""
    ranks = len(result.hosts)
    bandwidths: list[tuple[Mapping[str, object], float]] = [
        ({"collective": one.collective, "bytes": one.size_bytes}, one.bus_bandwidth(ranks))
        for one in result.collectives
    ]
    slow: list[tuple[Mapping[str, object], float]] = []
    for one in result.named:
        where = {
            "ranks": ",".join(map(str, one.ranks)),
            "hosts": ",".join(dict.fromkeys(one.hosts)),
        }
        slow.append(({"kind": one.kind, **where, "scope": one.scope}, 1.0))
    return (
        _family(
            "rankskew_collective_bus_bandwidth_bytes_per_second",
            "Bus bandwidth as nccl-tests defines it, by collective and size of the whole array.",
            bandwidths,
        )
        + _family(
            "rankskew_collective_slow_info", "1 for each link, rank or node that stands out.", slow
        )
        + _family(
            "rankskew_collective_measured_timestamp_seconds",
            "When this was measured, with the backend and the number of ranks.",
            [({"backend": result.backend, "ranks": ranks}, now)],
        )
    )


def _family(name: str, help: str, samples: Iterable[tuple[Mapping[str, object], float]]) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(str(of))}"' for label, of in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
