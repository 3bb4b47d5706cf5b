"""How long a viewer waits for the dashboards: every query of every panel, on a large fleet.

python -m benchmarks.panels [--nodes N] [--gpus N] [--jobs N] [--interval S] [--minutes N]

The nodes are simulated, Prometheus and the rules are real. Exits 1 if a query is too slow.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.report import Row, write
from devstack.parts import ROOT, PrometheusProcess, SimulationProcess
from devstack.process import get
from generators.markdown import table

DASHBOARDS: Final = ROOT / "dashboards" / "json"
RANGE_SECONDS: Final = 1800.0
POINTS: Final = 120
TIMES: Final = 3
SLOWEST: Final = 4
# A panel that takes longer feels broken.
LIMIT_SECONDS: Final = 2.0
# In the first job, one slow rank for each fault that has panels of its own.
FAULTS: Final = {"loader": (3, 5), "thermal": (6, 1)}
LATE_NODE, LATE_GPU = FAULTS["loader"]


class Query(NamedTuple):
    """One query of a panel, with its variables substituted."""

    board: str
    name: str
    expr: str
    instant: bool
    points: int = POINTS


def queries(board: str, dashboard: Row, choices: Mapping[str, str]) -> Iterator[Query]:
    """Yield what Grafana asks to draw *dashboard* with all rows open, annotations included."""
    for outer in dashboard["panels"]:
        for panel in (outer, *(outer.get("panels") or ())):
            points = min(panel.get("maxDataPoints") or POINTS, POINTS)
            for target in panel.get("targets", []):
                expr, name = target["expr"], f"{panel['title']} {target['refId']}"
                is_instant = bool(target.get("instant"))
                yield Query(board, name, substituted(expr, choices), is_instant, points)
    for note in dashboard.get("annotations", {}).get("list", []):
        expr = substituted(note["expr"], choices)
        yield Query(board, f"annotation {note['name']}", expr, False)


def substituted(expr: str, choices: Mapping[str, str]) -> str:
    """Return *expr* with *choices* in place of its variables; raises LookupError without one.

    A dollar before a digit belongs to label_replace.
    """
    return re.sub(r"\$([a-z_]\w*)", lambda match: choices[match[1]], expr)


def choices(gpus: int, jobs: int, interval_seconds: float) -> dict[str, str]:
    """Return the variables for the first job and its late rank, over the whole range."""
    return {
        "cluster": ".*",
        "job_id": "sim" if jobs == 1 else f"sim-{0:0{len(str(jobs - 1))}}",
        "rank": str(LATE_NODE * gpus + LATE_GPU),
        "instance": f"sim-{LATE_NODE:02}:9917",
        "gpu": ".*",
        "__rate_interval": f"{4 * interval_seconds:.0f}s",
        "__interval": f"{RANGE_SECONDS / POINTS:.0f}s",
        "__range": f"{RANGE_SECONDS:.0f}s",
    }


def ask(url: str, query: Query, now: float) -> tuple[float, int]:
    """Return how long the answer to *query* took, in seconds, and how many series it has."""
    asked = {"query": query.expr}
    if query.instant:
        asked["time"] = f"{now}"
    else:
        step = RANGE_SECONDS / query.points
        asked |= {"start": f"{now - RANGE_SECONDS}", "end": f"{now}", "step": f"{step}"}
    path = "query" if query.instant else "query_range"
    began = time.perf_counter()
    answer = get(f"{url}/api/v1/{path}?{urllib.parse.urlencode(asked)}", timeout_seconds=120)
    taken = time.perf_counter() - began
    return taken, len(json.loads(answer)["data"]["result"])


def measure(url: str, asked: Sequence[Query]) -> list[Row]:
    """Return a row for each query: the median of a few rounds over all of them."""
    rounds = [[ask(url, query, time.time()) for query in asked] for _ in range(TIMES)]
    return [
        {
            "dashboard": query.board,
            "query": query.name,
            "kind": "instant" if query.instant else "range",
            "seconds": statistics.median(seconds for seconds, _ in answers),
            "longest": max(seconds for seconds, _ in answers),
            "series": answers[-1][1],
        }
        for query, answers in zip(asked, zip(*rounds, strict=True), strict=True)
    ]


def slowest(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the slowest queries of each dashboard, with what all of its queries take together."""
    for board in dict.fromkeys(row["dashboard"] for row in rows):
        mine = sorted(
            (row for row in rows if row["dashboard"] == board), key=lambda row: -row["seconds"]
        )
        whole = {"queries": len(mine), "together, s": sum(row["seconds"] for row in mine)}
        yield from ({"dashboard": board, **whole, **row} for row in mine[:SLOWEST])


def fleet(nodes: int, gpus: int, jobs: int) -> list[str]:
    """Return the arguments of `rankskew simulate`."""
    asked = [f"--nodes={nodes}", f"--gpus={gpus}", f"--jobs={jobs}"]
    for kind, (node, gpu) in FAULTS.items():
        asked += ["--fault", f"{kind}:node={node},gpu={gpu}"]
    return asked


class Nodes(SimulationProcess):
    """The simulated nodes; thousands of ranks take a while to start."""

    ready_seconds = 180.0


def run(asked: argparse.Namespace) -> list[Row]:
    """Fill Prometheus for some minutes; return a row for each query.

    Raises LookupError if nodes are not scraped: queries without their data would look fast.
    """
    substitutes = choices(asked.gpus, asked.jobs, asked.interval)
    files = sorted(DASHBOARDS.glob("*.json"))
    boards = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}
    wanted = [query for name in boards for query in queries(name, boards[name], substitutes)]
    with (
        tempfile.TemporaryDirectory() as name,
        Nodes(Path(name) / "nodes", fleet(asked.nodes, asked.gpus, asked.jobs)) as nodes,
        PrometheusProcess(
            Path(name) / "prometheus",
            discovery=nodes.discovery,
            interval_seconds=asked.interval,
        ) as prometheus,
    ):
        time.sleep(asked.minutes * 60)
        down = prometheus.value("count(up == 0)") or 0
        if down or prometheus.value("count(up)") != asked.nodes:
            raise LookupError(f"{down:.0f} of {asked.nodes} nodes were not scraped in time")
        return measure(prometheus.url, wanted)


def table_of(result: Row) -> str:
    """Return the slowest queries of each dashboard, with what all of its queries take."""
    cells = [
        (
            row["dashboard"],
            f"{row['queries']}",
            f"{row['together, s']:.1f} s",
            row["query"],
            row["kind"],
            f"{row['seconds']:.2f} s",
            f"{row['series']:,}",
        )
        for row in result["rows"]
    ]
    header = ("dashboard", "queries", "together", "slowest queries", "kind", "median", "series")
    first, cpus = result["rows"][0], result["machine"]["cpus"]
    return (
        f"{first['ranks']:,} ranks in {first['jobs']} jobs, scraped every "
        f"{first['interval, s']:g} s, {first['minutes']:g} minutes of data, {cpus} CPUs; "
        f"medians of three rounds.\n\n{table(header, cells)}"
    )


def outcome(result: Row) -> str:
    """Return how long the slowest query of all dashboards takes."""
    found = result["rows"]
    worst = max(found, key=lambda row: row["seconds"])
    within = "within" if worst["seconds"] <= LIMIT_SECONDS else "**over**"
    return (
        f"With {worst['ranks']:,} ranks the slowest query of all dashboards takes "
        f"{worst['seconds']:.2f} s ({worst['query']!r} of {worst['dashboard'].title()}), "
        f"{within} the goal of {LIMIT_SECONDS:g} s."
    )


def main() -> int:
    """Measure and print; return 1 if a query takes too long."""
    parser = argparse.ArgumentParser(description="How long a viewer waits for the dashboards.")
    parser.add_argument("--nodes", type=int, default=512)
    parser.add_argument("--gpus", type=int, default=8, help="on each node")
    parser.add_argument("--jobs", type=int, default=4, help="equal ones (default: four)")
    parser.add_argument("--interval", type=float, default=15, help="of scrapes, in seconds")
    parser.add_argument("--minutes", type=float, default=10, help="of data (default: ten)")
    asked = parser.parse_args()
    rows = run(asked)
    about = {
        "ranks": asked.nodes * asked.gpus,
        "jobs": asked.jobs,
        "interval, s": asked.interval,
        "minutes": asked.minutes,
    }
    made = {"panels": table_of, "panels_outcome": outcome}
    write("panels", [about | row for row in slowest(rows)], tables=made)
    slow = [row for row in rows if row["seconds"] > LIMIT_SECONDS]
    for row in slow:
        print(f"{row['dashboard']}, {row['query']}: {row['seconds']:.1f} s", file=sys.stderr)
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
