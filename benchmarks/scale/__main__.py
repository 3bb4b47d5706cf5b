"""How many ranks one Prometheus handles: simulated nodes, real Prometheus, all shipped rules.

python -m benchmarks.scale [--ranks N ...] [--jobs N] [--before CHECKOUT]

With --before, each size is measured with the nodes and the rules of another checkout, too, just
before.

The cost of rules is the CPU time of Prometheus, minus that of one without rules over the same
nodes. The nodes are one process beside it, and both share two cores.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.report import last, write
from benchmarks.scale import tables
from benchmarks.scale.run import (
    BEFORE,
    EVALUATIONS,
    FAULT_STAGE,
    INTERVAL_SECONDS,
    MEMORY_LIMIT_MIB,
    NOW,
    RULES_LIMIT,
    SCRAPES_LIMIT,
    TREES,
    WARMUP_SECONDS,
    Plan,
    ScalePrometheus,
    Usage,
    running,
)
from devstack.parts import ROOT

SIZES: Final = (1_024, 4_096, 16_384)
SLOWEST: Final = 10
# Without rules there is nothing to fill: every series has been created and scraped again.
BARE_WARMUP_SECONDS: Final = 45.0


@dataclass
class Seen:
    """The wall time of each evaluation of a rule, in seconds, by group and name."""

    rules: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    intervals: dict[str, float] = field(default_factory=dict)

    def note_rules(self, groups: Sequence[dict[str, Any]]) -> None:
        """Record how long each rule took."""
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


def measure(plan: Plan) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a row of figures for *plan* and a row for each rule."""
    began = time.monotonic()
    without, unseen = baseline(plan)
    with running(plan) as (load, prometheus):
        time.sleep(plan.warmup_seconds)
        seen = Seen()
        usage = Usage(prometheus.pid, load.pid)
        taken = cpu_seconds(prometheus, plan.evaluations, seen)
        cores, load_cores, others = usage.cores()
        found = state(prometheus)
        row = {
            **plan.about,
            "rules CPU s of 15": mean(taken) - without,
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
        return row, seen.rows(plan)


def baseline(plan: Plan) -> tuple[float, int]:
    """Return the cost of scraping alone, in CPU seconds of each 15, and how many nodes were down.

    The same nodes, without any rule file.
    """
    with tempfile.TemporaryDirectory() as empty:
        bare = replace(plan, rules=Path(empty))
        with running(bare) as (_, prometheus):
            time.sleep(min(BARE_WARMUP_SECONDS, plan.warmup_seconds))
            taken = cpu_seconds(prometheus, plan.evaluations)
            return mean(taken), nodes_down(prometheus)


def cpu_seconds(
    prometheus: ScalePrometheus, evaluations: int, seen: Seen | None = None
) -> list[float]:
    """Return the CPU of Prometheus in each of so many periods of 15 s; *seen* records the rules."""
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
            seen.note_rules(prometheus.rule_groups())
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
    # A costly one warns and pages: two alerts, one rank.
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


def failures(row: dict[str, Any]) -> list[str]:
    """Return what in *row* is not as promised."""
    if row["tree"] == BEFORE:
        return []
    which = f"{row['ranks']} ranks"
    found = []
    if row["missed"]:
        found.append(f"{which}: {row['missed']} evaluations missed")
    if row["rules CPU s of 15"] > RULES_LIMIT:
        found.append(f"{which}: rules take {row['rules CPU s of 15']:.1f} CPU s of 15")
    if row["CPU s of 15 without rules"] > SCRAPES_LIMIT:
        found.append(f"{which}: scraping takes {row['CPU s of 15 without rules']:.1f} CPU s of 15")
    if row["RSS MiB"] > MEMORY_LIMIT_MIB:
        found.append(f"{which}: Prometheus takes {row['RSS MiB']:.0f} MiB")
    if row["nodes down"]:
        found.append(f"{which}: {row['nodes down']} nodes were not scraped")
    if not row["straggler named"]:
        found.append(f"{which}: the straggler is not the one and only that is paged")
    if row["others accused"]:
        found.append(f"{which}: {row['others accused']} others are accused")
    return found


def merged(name: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return *rows* and those of the last result for other sizes or trees."""
    measured = {_about(row) for row in rows}
    kept = [
        row for row in last(name) if _about(row) not in measured and row.keys() == rows[0].keys()
    ]
    return sorted([*kept, *rows], key=_place)


def _about(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("ranks", "tree", "jobs"))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["ranks"], TREES.index(row["tree"]), row["jobs"]


def plans(arguments: Sequence[str] | None = None) -> list[Plan]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="How many ranks a Prometheus carries.")
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--jobs", type=int, default=1, help="so many equal jobs (default: one)")
    parser.add_argument("--before", type=Path, help="another checkout, to be measured beside it")
    parser.add_argument("--warmup-seconds", type=float, default=WARMUP_SECONDS)
    parser.add_argument("--evaluations", type=int, default=EVALUATIONS)
    parser.add_argument(
        "--urgent", action="store_true", help="go before what else runs here (takes root)"
    )
    asked = parser.parse_args(arguments)
    checkouts = {BEFORE: asked.before.resolve()} if asked.before else {}
    return [
        Plan(
            ranks,
            tree,
            asked.jobs,
            asked.warmup_seconds,
            asked.evaluations,
            checkout,
            urgent=asked.urgent,
        )
        for ranks in asked.ranks
        for tree, checkout in (checkouts | {NOW: ROOT}).items()
    ]


def main() -> int:
    """Measure and print, after each size; return 1 if something is not as promised."""
    found = []
    for plan in plans():
        row, rules = measure(plan)
        made = {"scale": tables.scale, "scale_outcome": tables.outcome}
        write("scale", merged("scale", [row]), tables=made)
        dearest = merged("scale_rules", rules[:SLOWEST])
        write("scale_rules", dearest, tables={"scale_rules": tables.rules})
        found += failures(row)
    print(*found, sep="\n", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
