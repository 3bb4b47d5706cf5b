"""How long after a rank begins to be late its alert fires, on real ranks and a real Prometheus.

Real gloo ranks train; after a healthy while one of them is late. Two servers with the shipped rules
scrape the same exporter, one every 15 s and one every 5 s, and evaluate as often.

    python -m benchmarks.latency [--runs 3] [--sizes 10,25,100]
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy_job import STEP_SECONDS
from benchmarks.accuracy_plan import SHARES, Segment
from benchmarks.report import write
from demo.process import StackError
from demo.stack import Exporter, Prometheus, Training
from demo.verdict import STRAGGLER

INTERVALS_SECONDS: Final = (15.0, 5.0)
RANKS: Final = 4
# A whole window of the rules, the warm-up before it, and some.
HEALTHY_SECONDS: Final = 100.0
# Later than this it counts as not fired.
LONGEST_SECONDS: Final = 120.0
# What a step needs beside the emulated compute, roughly: gloo, the loop.
MORE: Final = 1.1


@dataclass(frozen=True)
class Fired:
    """An alert for one of the segments, the rank it names, and when it fired: Unix seconds."""

    job_id: str
    rank: str
    at: float


def segments(runs: int, sizes: list[float]) -> list[Segment]:
    """Return a segment for each run and size, now in one stage, now in another."""
    stages = list(SHARES)
    healthy = round(HEALTHY_SECONDS / STEP_SECONDS / MORE)
    return [
        Segment(
            way="ddp",
            ranks=RANKS,
            seed=run,
            fault=stages[(run + index) % len(stages)],
            size=size,
            healthy_steps=healthy,
            faulty_steps=round(LONGEST_SECONDS / STEP_SECONDS / MORE / (1 + size)),
        )
        for run in range(1, runs + 1)
        for index, size in enumerate(sizes)
    ]


def watch(plan: list[Segment]) -> tuple[dict[str, float], dict[float, list[Fired]]]:
    """Train *plan*; return when each segment's rank began to be late, and what fired, by interval.

    Raises StackError when a part ends that should not.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        exporter = stack.enter_context(Exporter(folder))
        servers = {
            seconds: stack.enter_context(
                Prometheus(folder / f"{seconds:g}", [exporter.address], interval_seconds=seconds)
            )
            for seconds in INTERVALS_SECONDS
        }
        (folder / "plan.json").write_text(json.dumps([one.to_json() for one in plan]))
        training = Training(
            folder / "training",
            [str(folder / "plan.json"), str(folder)],
            exporter=exporter.target,
            ranks=RANKS,
            script=("-m", "benchmarks.accuracy_job"),
        )
        stack.enter_context(training)
        fired: dict[float, dict[tuple[str, str], Fired]] = {seconds: {} for seconds in servers}
        while training.exit_code is None:
            for part in (exporter, *servers.values()):
                part.check_alive()
            for seconds, prometheus in servers.items():
                for one in _firing(prometheus):
                    fired[seconds].setdefault((one.job_id, one.rank), one)
            time.sleep(0.25)
        if training.exit_code:
            raise training.failure("did not end well")
        log = training.log.read_text()
    began = {key: float(at) for key, at in re.findall(r"(\S+) delayed from ([\d.]+)", log)}
    return began, {seconds: list(found.values()) for seconds, found in fired.items()}


def _firing(prometheus: Prometheus) -> Iterator[Fired]:
    """Yield the stragglers that are named now, by the clock of now."""
    for alert in prometheus.active_alerts():
        labels: Mapping[str, str] = alert["labels"]
        if alert["state"] == "firing" and labels["alertname"] == STRAGGLER:
            yield Fired(labels["job_id"], labels["rank"], time.time())


def row(
    size: float,
    seconds: float,
    plan: list[Segment],
    began: Mapping[str, float],
    fired: list[Fired],
) -> dict[str, Any]:
    """Return what the runs of one *size* say at one interval: seconds from onset to firing."""
    mine = [segment for segment in plan if segment.size == size]
    delays, others = [], 0
    for segment in mine:
        late = {str(rank) for rank, _ in segment.late()}
        named = [one for one in fired if one.job_id == segment.key]
        right = [one.at - began[segment.key] for one in named if one.rank in late]
        delays += [delay for delay in right if delay >= 0]
        others += len(named) - len([delay for delay in right if delay >= 0])
    return {
        "scrape, s": seconds,
        "fault, %": size * 100,
        "runs": len(mine),
        "fired": len(delays),
        "wrong": others,
        "median, s": statistics.median(delays) if delays else None,
        "max, s": max(delays, default=None),
    }


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description="How soon does the alert fire?")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sizes", default="10,25,100", help="percent of a healthy step")
    options = parser.parse_args()
    sizes = [float(word) / 100 for word in options.sizes.split(",")]
    plan = segments(options.runs, sizes)
    began, fired = watch(plan)
    if missing := [segment.key for segment in plan if segment.key not in began]:
        raise StackError(f"{missing[0]} was never late")
    rows = [
        row(size, seconds, plan, began, fired[seconds])
        for seconds in INTERVALS_SECONDS
        for size in sizes
    ]
    write("latency", rows, ("torch",))


if __name__ == "__main__":
    main()
