"""How much travels from a shard to a global Prometheus: series, and bytes of its /federate page.

python -m benchmarks.travel [--ranks N ...]

A real Prometheus with the rules of a shard scrapes simulated nodes of 8 ranks: one job, one late
rank. All of the job is on this shard, which is the most that one can have to send.
"""

import argparse
import gzip
import json
import sys
import tempfile
import urllib.parse
from collections import Counter
from pathlib import Path
from typing import Any, Final

from alerts.build_shards import plan
from benchmarks.diagnose import fast_rules
from benchmarks.report import RESULTS, write
from benchmarks.scale_run import Plan, ScalePrometheus, running
from demo.process import get, wait_for
from exporter.shards import selector

SIZES: Final = (64, 1_024, 4_096, 16_384)
PATIENCE_SECONDS: Final = 900.0
# Counts do not depend on it, and simulating many nodes takes a while.
INTERVAL_SECONDS: Final = 60.0
# Recorded last of what is told of a late rank, and what is told of each node.
LAST: Final = "suspect:rankskew_stage_seconds_total:copy"
OF_NODES: Final = ("node:rankskew_ranks:max", "instance:rankskew_gpu_clock_hertz:quantile")


def shard_rules(directory: Path) -> Path:
    """Write the rules of a shard, each evaluated at every scrape, and return where."""
    shipped = directory / "shipped"
    shipped.mkdir()
    for name, text in plan().files("shard").items():
        (shipped / name).write_text(text)
    return fast_rules(directory / "rules", shipped)


def measure(ranks: int) -> dict[str, Any]:
    """Return a row of counts for a job with so many *ranks*."""
    with tempfile.TemporaryDirectory() as name:
        asked = Plan(
            ranks,
            "join",
            rules=shard_rules(Path(name)),
            interval_seconds=INTERVAL_SECONDS,
        )
        with running(asked) as (_, prometheus):
            settled = wait_for(lambda: _settled(prometheus, asked), PATIENCE_SECONDS, every=5)
            if settled is None:
                raise LookupError(f"{ranks} ranks: not all nodes were scraped in time")
            page = _page(prometheus)
            scraped = prometheus.value("sum(scrape_samples_scraped)")
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    kinds = Counter(_kind(line, asked) for line in lines)
    return {
        "ranks": ranks,
        "nodes": asked.nodes,
        "scraped series": int(scraped or 0),
        "travelling": len(lines),
        "of nodes": kinds["node"],
        "of the job": kinds["job"],
        "of late ranks and their neighbours": kinds["rank"],
        "page bytes": len(page),
        "page bytes, gzip": len(gzip.compress(page, 6)),
    }


def _settled(prometheus: ScalePrometheus, asked: Plan) -> bool | None:
    nodes = {prometheus.value(f"count({name})") for name in OF_NODES}
    return True if nodes == {asked.nodes} and prometheus.query(LAST) else None


def _page(prometheus: ScalePrometheus) -> bytes:
    query = urllib.parse.urlencode({"match[]": selector(plan().travelling())})
    return get(f"{prometheus.url}/federate?{query}", timeout_seconds=60)


def _kind(line: str, asked: Plan) -> str:
    if 'rank="' in line:
        return "rank"
    return "node" if 'instance="sim' in line else "job"


def main() -> int:
    """Measure each size, and write a row for it."""
    parser = argparse.ArgumentParser(description="What travels from a shard.")
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    for ranks in parser.parse_args().ranks:
        row = measure(ranks)
        kept = [one for one in _before() if one["ranks"] != ranks]
        write("travel", sorted([*kept, row], key=lambda one: int(one["ranks"])))
    return 0


def _before() -> list[dict[str, Any]]:
    """Return the rows of the last result."""
    path = RESULTS / "travel.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return found


if __name__ == "__main__":
    sys.exit(main())
