"""The result as series, in a file for node_exporter's textfile collector."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.measurements.convention import bus_bandwidth
from rank_probe.collectives.report import by_scope
from rank_probe.collectives.verdict import costs

# node_exporter runs as a user of its own.
READABLE: Final = 0o644

Samples = Iterable[tuple[Mapping[str, object], float]]


def write(path: Path, result: MeasuredLinks) -> None:
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
    families = [
        _family(
            "rankskew_collective_bus_bandwidth_bytes_per_second",
            "Bus bandwidth as nccl-tests defines it, by collective and size of the whole array.",
            (
                (
                    {"collective": one.collective, "bytes": one.size_bytes},
                    bus_bandwidth(one.collective, one.size_bytes, one.seconds, ranks),
                )
                for one in result.collectives
            ),
        ),
        _family(
            "rankskew_collective_seconds",
            "Median time of a collective, by size of the whole array.",
            (
                ({"collective": one.collective, "bytes": one.size_bytes}, one.seconds)
                for one in result.collectives
            ),
        ),
        _family(
            "rankskew_pair_median_latency_seconds",
            "Median over pairs of ranks of the time of a small message, one way.",
            (
                ({"scope": scope}, statistics.median(one.latency_seconds for one in pairs))
                for scope, pairs in by_scope(result.best, result.hosts).items()
            ),
        ),
        _family(
            "rankskew_pair_median_bandwidth_bytes_per_second",
            "Median over pairs of ranks of the bandwidth of a large message.",
            (
                ({"scope": scope}, statistics.median(b for p in pairs for b in (p.there, p.back)))
                for scope, pairs in by_scope(result.best, result.hosts).items()
            ),
        ),
        _family(
            "rankskew_pair_worst_latency_seconds",
            "The longest latency of a pair, with its ranks.",
            _worst(result, "latency"),
        ),
        _family(
            "rankskew_pair_worst_bandwidth_bytes_per_second",
            "The lowest bandwidth of a pair, with its ranks.",
            _worst(result, "bandwidth"),
        ),
        _family(
            "rankskew_collective_slow_info",
            "1 for each link, rank or node that stands out.",
            (
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
            ),
        ),
        _family(
            "rankskew_collective_measured_timestamp_seconds",
            "When this was measured, with the backend and the number of ranks.",
            [({"backend": result.backend, "ranks": ranks}, now)],
        ),
    ]
    return "".join(families)


def _worst(result: MeasuredLinks, measure: str) -> Iterator[tuple[dict[str, object], float]]:
    for scope, pairs in by_scope(result.best, result.hosts).items():
        of_all = costs(pairs, "latency" if measure == "latency" else "bandwidth")
        (sender, receiver), cost = max(of_all.items(), key=lambda item: item[1])
        ranks = {"from_rank": sender, "to_rank": receiver}
        value = cost if measure == "latency" else 1 / cost
        yield {"scope": scope, **ranks}, value


def _family(name: str, help: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(str(of))}"' for label, of in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
