"""How many ranks a Prometheus carries: simulated nodes, real Prometheus, all shipped rules.

python -m benchmarks.scale [--ranks N ...] [--source join|window ...] [--jobs N] [--series read|all]

The nodes are one process beside Prometheus, and both have to do with two cores.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.one_port import OnePortPrometheus
from benchmarks.report import RESULTS, write
from benchmarks.scale_job import FAULT_STAGE, RANKS_PER_NODE
from benchmarks.scale_load import planted, simulated_jobs
from demo.process import Process, free_port, get
from demo.stack import RULES

SIZES: Final = (1_024, 4_096, 16_384)
SOURCES: Final = ("join", "window")
CORES: Final = 2
INTERVAL_SECONDS: Final = 15.0
# Seconds of rule evaluation in 15 that a source may take with the largest size.
LIMITS: Final = {"join": 3.0, "window": 6.0}
SLOWEST: Final = 10
URGENT_NICENESS: Final = -15
WARMUP_SECONDS: Final = 135.0
EVALUATIONS: Final = 10


@dataclass(frozen=True)
class Plan:
    """What is simulated and how long. Warm-up fills the windows of a minute, and no longer one."""

    ranks: int
    source: str
    jobs: int = 1
    series: str = "read"
    warmup_seconds: float = WARMUP_SECONDS
    evaluations: int = EVALUATIONS
    rules: Path = RULES
    urgent: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """Return what tells this measurement from others."""
        return {
            "ranks": self.ranks,
            "source": self.source,
            "jobs": self.jobs,
            "GPU series": self.series,
        }


class Load(Process):
    """The simulated nodes."""

    ready_seconds = 60.0

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.port = free_port()
        self.ready_url = f"http://127.0.0.1:{self.port}/-/ready"
        command = [sys.executable, "-m", "benchmarks.scale_load", str(self.port), str(plan.ranks)]
        command += [str(plan.jobs), plan.source, plan.series]
        super().__init__("the simulated nodes", command, directory / "load.log")


class ScalePrometheus(OnePortPrometheus):
    """Prometheus with the shipped rules and every node as a target of its own on one port."""

    # To end in order it writes all it holds to disk, which nobody reads.
    grace_seconds = 1.0

    def __init__(self, directory: Path, port: int, nodes: int, rules: Path) -> None:
        super().__init__(
            directory,
            port,
            [f"node{number}:9917" for number in range(nodes)],
            interval_seconds=INTERVAL_SECONDS,
            rules=rules,
            part="node(\\d+):.*",
        )

    def metrics(self) -> dict[str, float]:
        """Return what Prometheus says of itself, by name and labels."""
        lines = get(f"{self.url}/metrics", timeout_seconds=30).decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def version(self) -> str:
        """Return which Prometheus this is."""
        answer = json.loads(get(f"{self.url}/api/v1/status/buildinfo"))
        return str(answer["data"]["version"])

    def rule_groups(self) -> list[dict[str, Any]]:
        """Return the groups with their rules and how long each took last, in seconds."""
        answer = json.loads(get(f"{self.url}/api/v1/rules", timeout_seconds=60))
        groups: list[dict[str, Any]] = answer["data"]["groups"]
        return groups


@dataclass
class Seen:
    """What each evaluation took, in seconds: all rules together, and each rule by its name."""

    sums: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    rules: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    intervals: dict[str, float] = field(default_factory=dict)

    def note_rules(self, groups: Sequence[dict[str, Any]]) -> None:
        """Keep how long each rule took."""
        self.together.append(sum(group["evaluationTime"] for group in groups))
        for group in groups:
            self.intervals[group["name"]] = group["interval"]
            for position, rule in enumerate(group["rules"]):
                key = (group["name"], f"{position:02} {described(rule)}")
                self.rules.setdefault(key, []).append(rule["evaluationTime"])

    def rows(self, plan: Plan) -> list[dict[str, Any]]:
        """Return a row for each rule, the most expensive first."""
        found = [
            {
                **plan.about,
                "group": group,
                "rule": rule,
                "s in 15 s": mean(times) * INTERVAL_SECONDS / self.intervals[group],
                "s, max": max(times),
            }
            for (group, rule), times in self.rules.items()
        ]
        return sorted(found, key=lambda row: -row["s in 15 s"])


def described(rule: dict[str, Any]) -> str:
    """Return a rule's name with the labels that it adds: many rules record one series."""
    labels: dict[str, str] = rule.get("labels", {})
    added = [f"{name}={value}" for name, value in labels.items() if name != "severity"]
    return " ".join([rule["name"], *added])


def mean(values: Sequence[float]) -> float:
    """Return the mean of *values*."""
    return sum(values) / len(values)


class Usage:
    """CPU that processes have taken since this was made, in cores."""

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._since = time.monotonic()
        self._before = self._now()

    def cores(self) -> list[float]:
        """Return the cores of each process, then those of everything else on the machine."""
        seconds = time.monotonic() - self._since
        used = [(now - then) / seconds for now, then in zip(self._now(), self._before, strict=True)]
        return [*used[:-1], max(used[-1] - sum(used[:-1]), 0.0)]

    def _now(self) -> list[float]:
        each = [sum(process.cpu_times()[:2]) for process in self._processes]
        whole = psutil.cpu_times()
        return [*each, sum(whole) - whole.idle - whole.iowait - whole.guest - whole.guest_nice]


def go_first(pid: int) -> None:
    """Let the process come before others of this machine; takes root.

    Where the kernel groups processes by session, niceness counts within a session only.
    """
    os.setpriority(os.PRIO_PROCESS, pid, URGENT_NICENESS)
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(URGENT_NICENESS))


def waited(pid: int) -> float:
    """Return the seconds that threads of the process have been ready and had no core."""
    delays = [path.read_text().split()[1] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, delays)) / 1e9


@contextmanager
def running(plan: Plan) -> Iterator[tuple[Load, ScalePrometheus]]:
    """Run the nodes and Prometheus on two cores, with nothing left of them afterwards."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:CORES])
    try:
        with tempfile.TemporaryDirectory() as name, Load(Path(name), plan) as load:
            nodes = plan.ranks // RANKS_PER_NODE
            with ScalePrometheus(Path(name), load.port, nodes, plan.rules) as prometheus:
                if plan.urgent:
                    for process in (load, prometheus):
                        go_first(process.pid)
                yield load, prometheus
    finally:
        os.sched_setaffinity(0, allowed)


def measure(plan: Plan) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a row of figures for *plan* and a row for each rule."""
    with running(plan) as (load, prometheus):
        began = time.monotonic()
        time.sleep(plan.warmup_seconds)
        seen = Seen()
        usage = Usage(prometheus.pid, load.pid)
        waited_before = waited(prometheus.pid)
        before = spent(prometheus)
        deadline = time.monotonic()
        for _ in range(plan.evaluations):
            deadline += INTERVAL_SECONDS
            time.sleep(max(deadline - time.monotonic(), 0))
            after = spent(prometheus)
            seen.sums.append(after - before)
            before = after
            seen.note_rules(prometheus.rule_groups())
        cores, load_cores, others = usage.cores()
        row = {
            **plan.about,
            "seconds": time.monotonic() - began,
            "rules s of 15, mean": mean(seen.sums),
            "rules s of 15, max": max(seen.sums),
            "all groups at once, s": max(seen.together),
            **state(prometheus),
            "cores": cores,
            "waited for a core, s of 15": (waited(prometheus.pid) - waited_before)
            / plan.evaluations,
            "cores of the load": load_cores,
            "cores of others": others,
            "spoke": source_that_spoke(prometheus),
            **named(prometheus, plan),
            "Prometheus": prometheus.version(),
        }
        prometheus.check_alive()
        return row, seen.rows(plan)


def spent(prometheus: ScalePrometheus) -> float:
    """Return the seconds that rule groups have taken since Prometheus started."""
    return prometheus.metrics()["prometheus_rule_group_duration_seconds_sum"]


def state(prometheus: ScalePrometheus) -> dict[str, Any]:
    """Return missed evaluations, memory and load; raises LookupError where a rule fails."""
    metrics = prometheus.metrics()
    broken = [
        f"{rule['name']}: {rule['lastError']}"
        for group in prometheus.rule_groups()
        for rule in group["rules"]
        if rule["health"] == "err"
    ]
    if broken:
        raise LookupError("; ".join(broken))

    def total(name: str) -> float:
        return sum(value for key, value in metrics.items() if re.match(rf"{name}(\{{|$)", key))

    scraped = prometheus.query("sum(scrape_samples_scraped)")
    down = prometheus.value("count(up == 0)")
    return {
        "missed": int(total("prometheus_rule_group_iterations_missed_total")),
        "nodes down": int(down or 0),
        "scraped series": int(scraped[0].value) if scraped else 0,
        "head series": int(metrics["prometheus_tsdb_head_series"]),
        "RSS MiB": metrics["process_resident_memory_bytes"] / 2**20,
    }


def named(prometheus: ScalePrometheus, plan: Plan) -> dict[str, Any]:
    """Return whether the planted straggler fires with its stage, and who else is accused."""
    first = simulated_jobs(plan.ranks, plan.jobs)[0]
    late = (first.name, str(planted(first.ranks)))
    firing = [alert["labels"] for alert in prometheus.active_alerts() if alert["state"] == "firing"]
    pages = [
        (*_who(labels), labels.get("stage"))
        for labels in firing
        if labels["alertname"] == "RankskewStraggler"
    ]
    others = sorted({labels["alertname"] for labels in firing} - {"RankskewStraggler"})
    return {
        "straggler named": pages == [(*late, FAULT_STAGE)],
        "others accused": sum("rank" in labels and _who(labels) != late for labels in firing),
        "other alerts": " ".join(others),
    }


def _who(labels: dict[str, str]) -> tuple[str | None, str | None]:
    return labels.get("job_id"), labels.get("rank")


def source_that_spoke(prometheus: ScalePrometheus) -> str:
    """Return what the rules say they went by: join, window, or both for different jobs."""
    found = prometheus.query("job_source:rankskew_gpus_lost:info")
    return " ".join(sorted({series.labels["source"] for series in found}))


def failures(row: dict[str, Any]) -> list[str]:
    """Return what of *row* is not as promised."""
    which = f"{row['ranks']} ranks, {row['source']}"
    found = []
    if row["missed"]:
        found.append(f"{which}: {row['missed']} evaluations missed")
    if row["rules s of 15, mean"] > LIMITS[row["source"]]:
        found.append(f"{which}: rules take {row['rules s of 15, mean']:.1f} s of 15")
    if row["nodes down"]:
        found.append(f"{which}: {row['nodes down']} nodes were not scraped")
    if not row["straggler named"]:
        found.append(f"{which}: the straggler is not the one and only that is paged")
    if row["others accused"]:
        found.append(f"{which}: {row['others accused']} others are accused")
    if row["spoke"] != row["source"]:
        found.append(f"{which}: the rules went by {row['spoke'] or 'nothing'}")
    return found


def merged(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *rows* and those of the last result that are about other sizes or sources."""
    path = RESULTS / f"{name}.json"
    before = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = {_about(row) for row in rows}
    kept = [row for row in before if _about(row) not in measured and row.keys() == rows[0].keys()]
    return sorted([*kept, *rows], key=_about)


def _about(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("ranks", "source", "jobs", "GPU series"))


def plans(arguments: Sequence[str] | None = None) -> list[Plan]:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="How many ranks a Prometheus carries.")
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--source", choices=SOURCES, nargs="+", default=SOURCES)
    parser.add_argument("--jobs", type=int, default=1, help="so many equal jobs (default: one)")
    parser.add_argument(
        "--series",
        choices=("read", "all"),
        default="read",
        help="which series of GPUs and nodes: those that rules read (default), or all",
    )
    parser.add_argument("--rules", type=Path, default=RULES, help="a directory of rule files")
    parser.add_argument("--warmup-seconds", type=float, default=WARMUP_SECONDS)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument(
        "--urgent", action="store_true", help="go before what else runs here (takes root)"
    )
    asked = parser.parse_args(arguments)
    return [
        Plan(
            ranks,
            source,
            asked.jobs,
            asked.series,
            asked.warmup_seconds,
            asked.evaluations,
            asked.rules,
            asked.urgent,
        )
        for ranks in asked.ranks
        for source in asked.source
    ]


def main() -> int:
    """Measure and tell, after each size; return 1 where something is not as promised."""
    found = []
    for plan in plans():
        row, rules = measure(plan)
        write("scale", merged("scale", [row]))
        write("scale_rules", merged("scale_rules", rules[:SLOWEST]))
        found += failures(row)
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
