"""What `rank-probe bench-collectives` prints and writes: tables, one JSON document, or series."""

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.verdict import SCOPES, Finding, Scope, SlowReading, scope_of
from rank_probe.version import __version__
from rank_probe.wire.document import as_document

# More pairs than this are for --json.
MOST_PAIRS_SHOWN: Final = 28
# node_exporter runs as a user of its own.
READABLE: Final = 0o644
# What three digits would round up to 1000 of the smaller unit.
ROUNDED_UP: Final = 0.9995
Units = Sequence[tuple[str, float]]
BYTES: Final[Units] = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
SECONDS: Final[Units] = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
# Decimal, as in nccl-tests.
BANDWIDTHS: Final[Units] = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))


def as_json(result: MeasuredLinks) -> str:
    """Return *result* for scripts; docs/collectives.md describes the fields."""
    ranks = len(result.hosts)
    measured = {"pairs": result.pairs, "measured_again": result.again}
    content: dict[str, Any] = {
        "slow": bool(result.named),
        "verdict": verdict(result),
        "named": [
            one._asdict()
            | {"slow": [each._asdict() for each in one.slow], "sentence": sentence(one)}
            for one in result.named
        ],
        "probe": {"version": __version__},
        "backend": result.backend,
        "ranks": ranks,
        "hosts": list(result.hosts),
        "collectives": [
            one._asdict() | {"bus_bandwidth": one.bus_bandwidth(ranks)}
            for one in result.collectives
        ],
        "message_bytes": result.message_bytes,
    }
    for name, pairs in measured.items():
        content[name] = [
            one._asdict() | {"scope": scope_of(one.pair, result.hosts)} for one in pairs
        ]
    return as_document("bench-collectives", content)


def verdict(result: MeasuredLinks) -> str:
    """Return one sentence: what is slow, or that nothing stands out."""
    if len(result.pairs) < 2:
        return "no link stands out: two ranks have one link, and nothing to compare it with"
    return "; ".join(map(sentence, result.named)) or "no link stands out"


def sentence(one: Finding) -> str:
    """Return the name of what is slow, and its readings."""
    where = ", ".join(dict.fromkeys(one.hosts))
    names = {
        "node": f"node {where}",
        "rank": f"rank {one.ranks[0]}'s link ({where})",
        "link": f"the link between ranks {one.ranks[0]} and {one.ranks[-1]} ({where})",
    }
    scope = "between nodes" if one.scope == "inter-node" else "inside nodes"
    return f"{names[one.kind]} is slow {scope}: {'; '.join(map(_words, one.slow))}"


def _words(one: SlowReading) -> str:
    what = f"{one.way} at" if one.way else one.measure
    if one.measure == "bandwidth" and len(one.ranks) == 2:
        what = f"bandwidth from {one.ranks[0]} to {one.ranks[1]}"
    units = SECONDS if one.measure == "latency" else BANDWIDTHS
    value, typical = shown(one.value, units), shown(one.typical, units)
    return f"{what} {value} against {typical} ({one.factor:.1f} times)"


def as_text(result: MeasuredLinks) -> str:
    """Return the tables; the last line says what stands out."""
    return "\n".join(_lines(result))


def _lines(result: MeasuredLinks) -> Iterator[str]:
    ranks = len(result.hosts)
    yield f"{ranks_on_nodes(result.hosts)}, {result.backend}"
    yield ""
    rows: list[tuple[str, ...]] = [("collective", "size", "time", "busbw")]
    for one in result.collectives:
        seconds, bus = shown(one.seconds, SECONDS), shown(one.bus_bandwidth(ranks), BANDWIDTHS)
        rows.append((one.collective, shown(one.size_bytes, BYTES), seconds, bus))
    yield from _table(rows)
    yield ""
    for scope in SCOPES:
        yield from _spread(result, scope)
    if len(result.pairs) > MOST_PAIRS_SHOWN:
        yield "all pairs: see --json"
    else:
        rows = [("ranks", "latency", "there", "back", "scope")]
        for pair in result.best:
            there, back = shown(pair.there, BANDWIDTHS), shown(pair.back, BANDWIDTHS)
            latency, scope = shown(pair.latency_seconds, SECONDS), scope_of(pair.pair, result.hosts)
            rows.append((f"{pair.first} and {pair.second}", latency, there, back, scope))
        yield from _table(rows)
    yield ""
    if result.again:
        yield (
            f"note: measured {len(result.again)} pairs again, each alone on the machine, because "
            "some seemed slow"
        )
    yield from (f"slow: {sentence(one)}" for one in result.named)
    if not result.named:
        yield f"ok: {verdict(result)}"


def _spread(result: MeasuredLinks, scope: Scope) -> Iterator[str]:
    """Yield a line on the pairs of *scope*, if there are any: the median and the slowest."""
    pairs = [one for one in result.best if scope_of(one.pair, result.hosts) == scope]
    if pairs:
        latency = [one.latency_seconds for one in pairs]
        bandwidth = [each for one in pairs for each in (one.there, one.back)]
        yield (
            f"{scope}: {len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'}, latency "
            f"{shown(statistics.median(latency), SECONDS)} (slowest "
            f"{shown(max(latency), SECONDS)}), bandwidth with {shown(result.message_bytes, BYTES)} "
            f"{shown(statistics.median(bandwidth), BANDWIDTHS)} (slowest "
            f"{shown(min(bandwidth), BANDWIDTHS)})"
        )


def ranks_on_nodes(hosts: Sequence[str]) -> str:
    """Return how many ranks there are on how many nodes."""
    nodes = len(set(hosts))
    return f"{len(hosts)} ranks on {nodes} {'node' if nodes == 1 else 'nodes'}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(cell.ljust(width) for cell, width in cells).rstrip()


def shown(value: float, units: Units) -> str:
    """Return three digits and the largest of *units* that fits, else the smallest."""
    unit, factor = next((each for each in units if value >= each[1] * ROUNDED_UP), units[-1])
    return f"{value / factor:.3g} {unit}"


def write_textfile(path: Path, result: MeasuredLinks) -> None:
    """Put the series into *path* at once, so that nobody reads half of them; raises OSError."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(as_prometheus(result, time.time()))
    unfinished.chmod(READABLE)
    unfinished.replace(path)


def as_prometheus(result: MeasuredLinks, now: float) -> str:
    """Return the series of *result*, which ended at the Unix time *now*."""
    ranks = len(result.hosts)
    bus_bandwidths = [
        ({"collective": one.collective, "bytes": one.size_bytes}, one.bus_bandwidth(ranks))
        for one in result.collectives
    ]
    slow = [
        (
            {
                "kind": one.kind,
                "ranks": ",".join(map(str, one.ranks)),
                "hosts": ",".join(dict.fromkeys(one.hosts)),
                "scope": one.scope,
            },
            1.0,
        )
        for one in result.named
    ]
    return (
        _family(
            "rankskew_collective_bus_bandwidth_bytes_per_second",
            "Bus bandwidth as nccl-tests defines it, by collective and size of the whole array.",
            bus_bandwidths,
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


def _family(name: str, help: str, samples: Sequence[tuple[Mapping[str, object], float]]) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        # Prometheus escapes what JSON does.
        inside = ",".join(
            f"{label}={json.dumps(str(of), ensure_ascii=False)}" for label, of in labels.items()
        )
        lines.append(f"{name}{{{inside}}} {value!r}")
    return "\n".join(lines) + "\n"
