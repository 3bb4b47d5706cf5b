"""What `rank-probe bench-collectives` prints and writes: tables, one JSON document, or series."""

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.verdict import SCOPES, Finding, PairTime, Scope, SlowReading, scope_of
from rank_probe.version import __version__
from rank_probe.wire.document import as_document

# With more pairs than this, the text has only medians; --json has all pairs.
MOST_PAIRS_SHOWN: Final = 28
ROUNDED_UP: Final = 0.9995  # From here, three digits round to 1000 of the smaller unit.
Units = Sequence[tuple[str, float]]
BYTES: Final[Units] = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
SECONDS: Final[Units] = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
# Decimal, as in nccl-tests.
BANDWIDTHS: Final[Units] = (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))
SERIES: Final = {
    "bus_bandwidth_bytes_per_second": "Bus bandwidth as nccl-tests defines it, by collective and "
    "size of the whole array.",
    "slow_info": "1 for each link, rank or node that stands out.",
    "measured_timestamp_seconds": "When this was measured, with the backend and the number of "
    "ranks.",
}


def as_json(result: MeasuredLinks) -> str:
    """Return *result* for scripts; docs/collectives.md describes the fields."""
    ranks = len(result.hosts)
    content: dict[str, Any] = {
        "slow": bool(result.named),
        "verdict": verdict(result),
        "probe": {"version": __version__},
        "ranks": ranks,
        **result._asdict(),
        "named": [
            one._asdict()
            | {"slow": [each._asdict() for each in one.slow], "sentence": sentence(one)}
            for one in result.named
        ],
        "collectives": [
            one._asdict() | {"bus_bandwidth": one.bus_bandwidth(ranks)}
            for one in result.collectives
        ],
        "pairs": [
            one._asdict() | {"scope": scope_of(one.ranks, result.hosts)} for one in result.pairs
        ],
    }
    return as_document("bench-collectives", content)


def verdict(result: MeasuredLinks) -> str:
    """Return one sentence: what is slow, or that nothing stands out."""
    if len(result.pairs) < 2:
        return "no link stands out: two ranks have one link, and nothing to compare it with"
    return "; ".join(map(sentence, result.named)) or "no link stands out"


def sentence(one: Finding) -> str:
    """Return the name of what is slow, and its readings."""
    where = ", ".join(one.hosts)
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
    ranks = len(result.hosts)
    message = shown(result.message_bytes, BYTES)
    lines = [f"{ranks_on_nodes(result.hosts)}, {result.backend}, messages of {message}", ""]
    rows: list[tuple[str, ...]] = [("collective", "size", "time", "busbw")]
    for one in result.collectives:
        seconds, bus = shown(one.seconds, SECONDS), shown(one.bus_bandwidth(ranks), BANDWIDTHS)
        rows.append((one.collective, shown(one.size_bytes, BYTES), seconds, bus))
    lines += [*_table(rows), ""]
    rows = [("ranks", "latency", "there", "back", "scope")]
    for scope in SCOPES:
        like = [one for one in result.pairs if scope_of(one.ranks, result.hosts) == scope]
        if like:
            medians = PairTime(
                like[0].ranks,
                statistics.median(one.latency_seconds for one in like),
                statistics.median(one.there for one in like),
                statistics.median(one.back for one in like),
            )
            rows.append(_row(f"median of {len(like)}", medians, scope))
    if len(result.pairs) > MOST_PAIRS_SHOWN:
        lines.append("medians of the pairs; all of them: see --json")
    else:
        for pair in result.pairs:
            name, scope = "{} and {}".format(*pair.ranks), scope_of(pair.ranks, result.hosts)
            rows.append(_row(name, pair, scope))
    lines += _table(rows)
    lines.append("")
    if result.measured_again:
        lines.append(
            f"note: measured {result.measured_again} pairs again, each alone on the machine, "
            "because some seemed slow"
        )
    ends = [f"slow: {sentence(one)}" for one in result.named] or [f"ok: {verdict(result)}"]
    return "\n".join(lines + ends)


def _row(name: str, one: PairTime, scope: Scope) -> tuple[str, ...]:
    there, back = shown(one.there, BANDWIDTHS), shown(one.back, BANDWIDTHS)
    return name, shown(one.latency_seconds, SECONDS), there, back, scope


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
    """Format *value* with three digits in the largest of *units* that fits, else the smallest."""
    unit, factor = next((each for each in units if value >= each[1] * ROUNDED_UP), units[-1])
    return f"{value / factor:.3g} {unit}"


def write_textfile(path: Path, result: MeasuredLinks) -> None:
    """Replace *path* atomically, so that nobody reads a partial file; raises OSError."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(as_prometheus(result, time.time()))
    unfinished.chmod(0o644)  # node_exporter runs as a user of its own.
    unfinished.replace(path)


def as_prometheus(result: MeasuredLinks, now: float) -> str:
    """Return the series of *result*, which ended at the Unix time *now*."""
    ranks = len(result.hosts)
    samples: Mapping[str, list[tuple[Mapping[str, object], float]]] = {
        "bus_bandwidth_bytes_per_second": [
            ({"collective": one.collective, "bytes": one.size_bytes}, one.bus_bandwidth(ranks))
            for one in result.collectives
        ],
        "slow_info": [
            (
                {"kind": one.kind, "ranks": ",".join(map(str, one.ranks))}
                | {"hosts": ",".join(one.hosts), "scope": one.scope},
                1.0,
            )
            for one in result.named
        ],
        "measured_timestamp_seconds": [({"backend": result.backend, "ranks": ranks}, now)],
    }
    lines = []
    for name, help in SERIES.items():
        series = f"rankskew_collective_{name}"
        lines += [f"# HELP {series} {help}", f"# TYPE {series} gauge"]
        for labels, value in samples[name]:
            # Prometheus escapes what JSON does.
            quoted = (f"{k}={json.dumps(str(v), ensure_ascii=False)}" for k, v in labels.items())
            lines.append(f"{series}{{{','.join(quoted)}}} {value!r}")
    return "\n".join(lines) + "\n"
