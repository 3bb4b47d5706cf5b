"""How many ranks one Prometheus handles: simulated nodes, real Prometheus, all shipped rules.

python -m benchmarks.scale [--ranks N ...] [--jobs N] [--before CHECKOUT]

With --before, each size is first measured with the nodes and the rules of another checkout.

The cost of rules is the CPU time of Prometheus, minus that of a Prometheus without rules over the
same nodes. The nodes are one process beside it, and both share two cores.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.report import Row, merged, write
from devstack.parts import ROOT, RULES, PrometheusProcess, SimulationProcess
from devstack.process import get
from generators.markdown import table

SIZES: Final = (1_024, 4_096, 16_384)
SLOWEST: Final = 10
# Without rules there is no window to fill: by then every series was created and scraped again.
BARE_WARMUP_SECONDS: Final = 45.0
DEAREST = 5
CORES: Final = 2
RANKS_PER_NODE: Final = 8
# CPU seconds of 15 that rules and scraping may take, and memory, up to the largest size.
RULES_LIMIT: Final = 1.5
SCRAPES_LIMIT: Final = 2.5
MEMORY_LIMIT_MIB: Final = 3 * 1024
# The fault of the late rank, and the stage in which it is late.
FAULT, FAULT_STAGE = "thermal", "backward"
INTERVAL_SECONDS: Final = 15.0
# This checkout, and the one that it is compared with.
NOW, BEFORE = "now", "before"
TREES: Final = (BEFORE, NOW)
TREE_NAMES = {BEFORE: "the release before", NOW: "this one"}
# Fills the windows of a minute.
WARMUP_SECONDS: Final = 120.0
# Whole periods of the groups that run every minute or two.
EVALUATIONS: Final = 8


@dataclass(frozen=True)
class Plan:
    """What is simulated, and how long."""

    ranks: int
    tree: str = NOW
    jobs: int = 1
    warmup_seconds: float = WARMUP_SECONDS
    evaluations: int = EVALUATIONS
    checkout: Path = ROOT
    # None: those of the checkout.
    rules: Path | None = None
    interval_seconds: float = INTERVAL_SECONDS

    @property
    def about(self) -> dict[str, Any]:
        """Return what distinguishes this measurement from others."""
        return {"ranks": self.ranks, "tree": self.tree, "jobs": self.jobs}

    @property
    def nodes(self) -> int:
        """Return how many nodes the ranks are on."""
        return self.ranks // RANKS_PER_NODE

    @property
    def late(self) -> tuple[str, str]:
        """Return the first job and its late rank: neither at an end nor the first on a node."""
        job = "sim" if self.jobs == 1 else f"sim-{0:0{len(str(self.jobs - 1))}}"
        return job, str(self.ranks // self.jobs // 3)

    def simulated(self) -> list[str]:
        """Return the arguments of `rankskew simulate`."""
        node, gpu = divmod(int(self.late[1]), RANKS_PER_NODE)
        asked = [f"--nodes={self.nodes}", f"--gpus={RANKS_PER_NODE}", f"--jobs={self.jobs}"]
        return [*asked, "--fault", f"{FAULT}:node={node},gpu={gpu}"]


class Load(SimulationProcess):
    """The simulated nodes."""

    ready_seconds = 120.0

    def __init__(self, directory: Path, plan: Plan) -> None:
        # Otherwise Python would search the working directory first.
        code = {"PYTHONPATH": str(plan.checkout), "PYTHONSAFEPATH": "1"}
        super().__init__(directory / "load", plan.simulated(), environment=code)


class ScalePrometheus(PrometheusProcess):
    """Prometheus with *rules* and every node of *load* as its own target."""

    # A clean stop would write everything in memory to disk, which nobody reads.
    grace_seconds = 1.0

    def __init__(self, directory: Path, load: Load, plan: Plan) -> None:
        super().__init__(
            directory,
            discovery=load.discovery,
            interval_seconds=plan.interval_seconds,
            rules=plan.rules or plan.checkout / RULES.relative_to(ROOT),
        )

    def metrics(self) -> dict[str, float]:
        """Return Prometheus's own metrics, by name and labels."""
        lines = get(f"{self.url}/metrics", timeout_seconds=30).decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def cpu_seconds(self) -> float:
        """Return the CPU time of Prometheus since its start."""
        return self.metrics()["process_cpu_seconds_total"]

    def version(self) -> str:
        """Return the version of this Prometheus."""
        answer = json.loads(get(f"{self.url}/api/v1/status/buildinfo"))
        return str(answer["data"]["version"])

    def rule_groups(self) -> list[dict[str, Any]]:
        """Return the groups with their rules and the last duration of each, in seconds."""
        answer = json.loads(get(f"{self.url}/api/v1/rules", timeout_seconds=60))
        groups: list[dict[str, Any]] = answer["data"]["groups"]
        return groups


class Usage:
    """The CPU, in cores, that processes have used since this object was created."""

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


@contextmanager
def running(plan: Plan) -> Iterator[tuple[Load, ScalePrometheus]]:
    """Run the nodes and Prometheus on two cores, and remove everything afterwards."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:CORES])
    try:
        with (
            tempfile.TemporaryDirectory() as name,
            Load(Path(name), plan) as load,
            ScalePrometheus(Path(name), load, plan) as prometheus,
        ):
            yield load, prometheus
    finally:
        os.sched_setaffinity(0, allowed)


# The wall time of each evaluation of a rule, in seconds, by its group, its name and the interval.
Seen = dict[tuple[str, str, float], list[float]]


def described(rule: dict[str, Any]) -> str:
    """Return a rule's name with the labels that it adds: many rules record one series."""
    labels: dict[str, str] = rule.get("labels", {})
    added = [f"{name}={value}" for name, value in labels.items() if name != "severity"]
    return " ".join([rule["name"], *added])


def measure(plan: Plan) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a row of figures for *plan* and a row for each rule."""
    began = time.monotonic()
    without, unseen = baseline(plan)
    with running(plan) as (load, prometheus):
        time.sleep(plan.warmup_seconds)
        seen: Seen = {}
        usage = Usage(prometheus.pid, load.pid)
        taken = cpu_seconds(prometheus, plan.evaluations, seen)
        cores, load_cores, others = usage.cores()
        found = state(prometheus)
        row = {
            **plan.about,
            "rules CPU s of 15": statistics.fmean(taken) - without,
            "rules CPU s of 15, max": max(taken) - without,
            "CPU s of 15 without rules": without,
            **found,
            "nodes down": found["nodes down"] + unseen,
            "cores": cores,
            "cores of the load": load_cores,
            "cores of others": others,
            **named(prometheus, plan),
            "seconds": time.monotonic() - began,
            "Prometheus": prometheus.version(),
        }
        prometheus.check_alive()
        rules = [
            {
                **plan.about,
                "group": group,
                "rule": rule,
                "s in 15 s": statistics.fmean(times) * INTERVAL_SECONDS / interval,
                "s, max": max(times),
            }
            for (group, rule, interval), times in seen.items()
        ]
        return row, sorted(rules, key=lambda rule: -rule["s in 15 s"])


def baseline(plan: Plan) -> tuple[float, int]:
    """Return the cost of scraping alone, in CPU seconds of each 15, and how many nodes were down.

    The same nodes, without any rule file.
    """
    with tempfile.TemporaryDirectory() as empty:
        bare = replace(plan, rules=Path(empty))
        with running(bare) as (_, prometheus):
            time.sleep(min(BARE_WARMUP_SECONDS, plan.warmup_seconds))
            taken = cpu_seconds(prometheus, plan.evaluations)
            return statistics.fmean(taken), nodes_down(prometheus)


def cpu_seconds(
    prometheus: ScalePrometheus, evaluations: int, seen: Seen | None = None
) -> list[float]:
    """Return Prometheus's CPU seconds in each period of 15 s; *seen* collects the rules' times."""
    taken = []
    before, then = prometheus.cpu_seconds(), time.monotonic()
    deadline = then
    for _ in range(evaluations):
        deadline += INTERVAL_SECONDS
        time.sleep(max(deadline - time.monotonic(), 0))
        after, now = prometheus.cpu_seconds(), time.monotonic()
        taken.append((after - before) * INTERVAL_SECONDS / (now - then))
        before, then = after, now
        if seen is not None:
            for group in prometheus.rule_groups():
                for position, rule in enumerate(group["rules"]):
                    key = (group["name"], f"{position:02} {described(rule)}", group["interval"])
                    seen.setdefault(key, []).append(rule["evaluationTime"])
    return taken


def state(prometheus: ScalePrometheus) -> dict[str, Any]:
    """Return missed evaluations, memory and load; raises LookupError if a rule fails."""
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
    return {
        "missed": int(total("prometheus_rule_group_iterations_missed_total")),
        "nodes down": nodes_down(prometheus),
        "scraped series": int(scraped[0].value) if scraped else 0,
        "head series": int(metrics["prometheus_tsdb_head_series"]),
        "RSS MiB": metrics["process_resident_memory_bytes"] / 2**20,
    }


def nodes_down(prometheus: ScalePrometheus) -> int:
    """Return how many of the nodes the last scrape did not reach."""
    return int(prometheus.value("count(up == 0)") or 0)


def named(prometheus: ScalePrometheus, plan: Plan) -> dict[str, Any]:
    """Return whether the planted straggler fires with its stage, and which others are accused."""
    firing = [alert["labels"] for alert in prometheus.active_alerts() if alert["state"] == "firing"]
    # A costly straggler both warns and pages: two alerts for one rank.
    pages = {
        (*_who(labels), labels.get("stage"))
        for labels in firing
        if labels["alertname"] == "RankskewStraggler"
    }
    others = sorted({labels["alertname"] for labels in firing} - {"RankskewStraggler"})
    return {
        "straggler named": pages == {(*plan.late, FAULT_STAGE)},
        "others accused": sum("rank" in labels and _who(labels) != plan.late for labels in firing),
        "other alerts": " ".join(others),
    }


def _who(labels: dict[str, str]) -> tuple[str | None, str | None]:
    return labels.get("job_id"), labels.get("rank")


def failures(row: Row) -> list[str]:
    """Return what in *row* is not as promised."""
    rules, scraping = row["rules CPU s of 15"], row["CPU s of 15 without rules"]
    checks = [
        (row["missed"] > 0, f"{row['missed']} evaluations missed"),
        (rules > RULES_LIMIT, f"rules take {rules:.1f} CPU s of 15"),
        (scraping > SCRAPES_LIMIT, f"scraping takes {scraping:.1f} CPU s of 15"),
        (row["RSS MiB"] > MEMORY_LIMIT_MIB, f"Prometheus takes {row['RSS MiB']:.0f} MiB"),
        (row["nodes down"] > 0, f"{row['nodes down']} nodes were not scraped"),
        (not row["straggler named"], "the straggler is not the one and only that is paged"),
        (row["others accused"] > 0, f"{row['others accused']} others are accused"),
    ]
    is_before = row["tree"] == BEFORE
    return [f"{row['ranks']} ranks: {said}" for fails, said in checks if fails and not is_before]


def in_order(name: str, rows: Sequence[Row]) -> list[Row]:
    """Return *rows* and those of the last result for other sizes or trees."""
    found = merged(name, rows, ("ranks", "tree", "jobs"))
    return sorted(found, key=lambda row: (row["ranks"], TREES.index(row["tree"]), row["jobs"]))


def scale_table(result: Row) -> str:
    """Return a row for each size and tree."""
    found = result["rows"]
    cells = [
        (
            f"{row['ranks']:,}",
            _tree(row),
            f"{row['rules CPU s of 15']:.2f} s (max {row['rules CPU s of 15, max']:.2f})",
            f"{row['CPU s of 15 without rules']:.2f} s",
            str(row["missed"]),
            f"{row['head series'] / 1e3:,.0f}k",
            f"{row['RSS MiB'] / 1024:.1f} GiB",
            f"{row['cores of the load']:.2f} and {row['cores of others']:.2f}",
            "yes" if row["straggler named"] and not row["others accused"] else "**no**",
        )
        for row in found
    ]
    header = (
        "ranks",
        "release",
        "CPU of the rules per 15 s",
        "without rules",
        "missed evaluations",
        "series",
        "memory",
        "cores of the nodes, of others",
        "only the late rank named",
    )
    machine = result["machine"]
    return f"Prometheus {found[0]['Prometheus']}, {machine['cpus']} CPUs.\n\n{table(header, cells)}"


def outcome_text(result: Row) -> str:
    """Return the cost of the rules for each size of one job, and whether it is within the goals."""
    found = [row for row in result["rows"] if _is_plain(row) and row["tree"] == NOW]
    sentences = []
    for row in found:
        missed = row["missed"]
        sentences.append(
            f"For {row['ranks']:,} ranks the rules take {row['rules CPU s of 15']:.1f} CPU seconds "
            f"of 15 ({_verdict(row['rules CPU s of 15'], RULES_LIMIT)}), scraping "
            f"{row['CPU s of 15 without rules']:.1f} "
            f"({_verdict(row['CPU s of 15 without rules'], SCRAPES_LIMIT)}), and Prometheus "
            f"{row['RSS MiB'] / 1024:.1f} GiB "
            f"({_verdict(row['RSS MiB'] / 1024, MEMORY_LIMIT_MIB / 1024)}); "
            f"{missed or 'no'} evaluation{'s were' if missed > 1 else ' was'} missed."
        )
    return "\n".join(sentences)


def _verdict(value: float, limit: float) -> str:
    within = "within" if round(value, 1) <= limit else "**over**"
    return f"{within} the goal of {limit:g}"


def rules_table(result: Row) -> str:
    """Return the most expensive rules at the largest number of ranks."""
    found = result["rows"]
    most = max(row["ranks"] for row in found)
    cells = []
    for tree in TREES:
        mine = [row for row in found if (row["ranks"], row["tree"]) == (most, tree)]
        cells += [_rule(row) for row in _dearest(mine)]
    return table(("ranks", "release", "rule", "wall time per 15 s, in seconds"), cells)


def _dearest(found: Sequence[Row]) -> Sequence[Row]:
    plain = [row for row in found if _is_plain(row)]
    return sorted(plain, key=lambda row: -row["s in 15 s"])[:DEAREST]


def _is_plain(row: Row) -> bool:
    return bool(row["jobs"] == 1)


def _rule(row: Row) -> tuple[str, ...]:
    # Its position in the group comes first.
    name = row["rule"].partition(" ")[2]
    return f"{row['ranks']:,}", TREE_NAMES[row["tree"]], f"`{name}`", f"{row['s in 15 s']:.2f}"


def _tree(row: Row) -> str:
    tree = TREE_NAMES[row["tree"]]
    return tree if row["jobs"] == 1 else f"{tree}, {row['jobs']} jobs"


def plans(arguments: Sequence[str] | None = None) -> list[Plan]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="How many ranks a Prometheus carries.")
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=1, help="so many equal jobs (default: one)")
    parser.add_argument("--before", type=Path, help="another checkout, to be measured beside it")
    parser.add_argument("--warmup-seconds", type=float, default=WARMUP_SECONDS)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    asked = parser.parse_args(arguments)
    checkouts = {BEFORE: asked.before.resolve()} if asked.before else {}
    return [
        Plan(ranks, tree, asked.jobs, asked.warmup_seconds, asked.evaluations, checkout)
        for ranks in asked.ranks
        for tree, checkout in (checkouts | {NOW: ROOT}).items()
    ]


def main() -> int:
    """Measure and print, after each size; return 1 if something is not as promised."""
    found = []
    for plan in plans():
        row, rules = measure(plan)
        made = {"scale": scale_table, "scale_outcome": outcome_text}
        write("scale", in_order("scale", [row]), tables=made)
        dearest = in_order("scale_rules", rules[:SLOWEST])
        write("scale_rules", dearest, tables={"scale_rules": rules_table})
        found += failures(row)
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
