"""The figures of the documentation, from what the benchmarks wrote."""

import json
from pathlib import Path
from typing import Any

from docs.markdown import table

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of one benchmark's result."""
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return found


def masking() -> str:
    """Return the naive numbers beside ours, a row for each place of the delay."""
    found = rows("masking")
    return table(
        tuple(found[0]),
        [tuple(_short(value) for value in row.values()) for row in found],
    )


def costs() -> str:
    """Return what the probe and a scrape cost."""
    probe = {row["what"]: row for row in rows("overhead")}
    scrape = rows("scrape")[0]
    cells = [(what, _spread(row)) for what, row in probe.items()]
    load = f"{scrape['gpus']} stub GPUs and {scrape['ranks']} ranks"
    cells += [
        (
            f"a scrape with {load}: {scrape['series']} series",
            f"{scrape['p50 ms']:.1f} ms (p99 {scrape['p99 ms']:.1f})",
        ),
        (
            "memory of the exporter, its NVML child included",
            f"{scrape['RSS MiB, NVML child included']:.0f} MiB",
        ),
    ]
    return table(("what", "median"), cells)


def _spread(row: dict[str, Any]) -> str:
    return f"{row['median']:.3g} {row['unit']} (quartiles {row['q1']:.3g} to {row['q3']:.3g})"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
