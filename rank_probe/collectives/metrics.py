"""The result as series, in a file for node_exporter's textfile collector."""

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rank_probe.collectives.measure import MeasuredLinks
from rank_probe.collectives.measurements.convention import bus_bandwidth

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


def _family(name: str, help: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {help}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(str(of))}"' for label, of in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
