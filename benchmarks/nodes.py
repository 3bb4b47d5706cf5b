"""Does `rankskew nodes` find the lemons of a simulated month, and accuse no other node?

    python -m benchmarks.nodes [--seeds 10] [--nodes 256]

Each month has eight lemons of four kinds among jobs of all sizes, some with faults of their own
(fleet_simulator/month.py). The first one is also written into a Prometheus, and asked of it.
Writes results/nodes.json; exits 1 if a lemon is not in the first ten, a healthy node is called one,
or the answer takes two seconds.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.report import write
from fleet_simulator.month import HOURS, Month, simulate
from fleet_simulator.stack.parts import PrometheusProcess
from fleet_simulator.stack.process import program
from rankskew.client.prometheus import Prometheus
from rankskew.nodes.judge import NodeFinding, NodeVerdict, judged
from rankskew.nodes.read import FleetPast, read_fleet
from rankskew.report.times import HOUR_SECONDS

FIRST: Final = 10
MOST_SECONDS: Final = 2.0
QUERIES: Final = 5
MONTH_SECONDS: Final = HOURS * HOUR_SECONDS


def backfill(month: Month, directory: Path) -> None:
    """Write *month* as blocks of a Prometheus with its files in *directory*."""
    text = directory / "month.openmetrics"
    with text.open("w") as file:
        file.writelines(month.openmetrics())
    command = [program(["promtool"]), "tsdb", "create-blocks-from", "openmetrics"]
    wide = "--max-block-duration=744h"
    subprocess.run(
        [*command, wide, text, directory / "data"], check=True, stdout=subprocess.DEVNULL
    )


def read(month: Month, end: float) -> tuple[FleetPast, float]:
    """Return what a Prometheus says of *month*, which ends at *end*, and the median seconds."""
    took = []
    with tempfile.TemporaryDirectory() as directory:
        backfill(month, Path(directory))
        with PrometheusProcess(Path(directory), keeps="60d") as server:
            prometheus = Prometheus(server.url, timeout_seconds=60)
            for _ in range(QUERIES):
                began = time.monotonic()
                fleet = read_fleet(prometheus, (end - MONTH_SECONDS, end))
                took.append(time.monotonic() - began)
    return fleet, sorted(took)[QUERIES // 2]


def row(seed: int, month: Month, fleet: FleetPast, seconds: float | None) -> dict[str, Any]:
    """Return how right the verdicts on *fleet* are."""
    found: list[NodeFinding] = judged(fleet.nodes)
    named = [each.past.name for each in found if each.verdict is NodeVerdict.LEMON]
    first = {each.past.name for each in found[:FIRST]}
    return {
        "seed": seed,
        "read from": "the simulation" if seconds is None else "Prometheus",
        "lemons": len(month.lemons),
        f"in the first {FIRST}": sum(name in first for name in month.lemons),
        "called lemons": sum(name in month.lemons for name in named),
        "healthy, called lemons": sum(name not in month.lemons for name in named),
        "uncertain": sum(each.verdict is NodeVerdict.UNCERTAIN for each in found),
        "seconds": seconds,
    }


def is_right(row: dict[str, Any]) -> bool:
    """Whether all lemons are in the first ten, nobody else is called one, and it was quick."""
    return (
        row[f"in the first {FIRST}"] == row["lemons"]
        and not row["healthy, called lemons"]
        and (row["seconds"] or 0.0) < MOST_SECONDS
    )


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description="Does rankskew nodes find the lemons?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=256)
    options = parser.parse_args()
    end = time.time() // HOUR_SECONDS * HOUR_SECONDS
    rows = []
    for seed in range(1, options.seeds + 1):
        month = simulate(seed, end - MONTH_SECONDS, options.nodes)
        rows.append(row(seed, month, month.past(end), None))
        if seed == 1:
            rows.append(row(seed, month, *read(month, end)))
        print(rows[-1], flush=True)
    write("nodes", rows)
    return 0 if all(map(is_right, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
