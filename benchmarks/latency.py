"""How long after a rank becomes late its alert fires, on real ranks and a real Prometheus.

Real gloo ranks train. After a healthy period, or from the job's first step, one of them is late.
Two servers with the shipped rules scrape the same exporter, one every 15 s and one every 5 s, and
evaluate as often. The alert, as it first fires, is compared with the planted fault. A row has the
time of each step towards the page: the exporter's verdict and cause, the scrape, the evaluation.

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
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.accuracy.job import STEP_SECONDS
from benchmarks.accuracy.plan import SHARES, Segment
from benchmarks.report import Row, write, written
from devstack.parts import ExporterProcess, PrometheusProcess, TrainingProcess
from devstack.process import StackError
from generators.markdown import table

STRAGGLER: Final = "RankskewStraggler"
INTERVALS_SECONDS: Final = (15.0, 5.0)
RANKS: Final = 4
# Hundreds of steps: a past that a rank can be compared with.
HEALTHY_SECONDS: Final = 40.0
# For a rank that is late from the first step on: the same as in the demo.
START_SIZE: Final = 0.5
# An alert that fires later than this counts as not fired.
LONGEST_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.25
# What comes between the first late step and the alert.
MOMENTS: Final = ("verdict", "cause", "scrape", "evaluation")
# The planted delays sleep, in a line of the job.
CAUSE: Final = "code"
LINE: Final = re.compile(r"\([\w/.]+\.py:\d+\)")
# Rough factor from the emulated compute to a whole step: gloo and the loop take the rest.
MORE: Final = 1.1


@dataclass(frozen=True)
class Fired:
    """An alert as it first fired; *at* is Unix seconds, *gpus* its value.

    *has_line* is whether its text names a line of code. *moments* has Unix seconds by MOMENTS.
    """

    job_id: str
    rank: str
    at: float
    cause: str
    gpus: float
    has_line: bool
    moments: Mapping[str, float] = field(default_factory=dict)


def segments(runs: int, sizes: list[float]) -> list[Segment]:
    """Return a segment for each run and size, and one that is late from its first step on.

    The stage changes from run to run.
    """
    stages = list(SHARES)
    healthy = round(HEALTHY_SECONDS / STEP_SECONDS / MORE)
    return [
        Segment(
            way="ddp",
            ranks=RANKS,
            # Seeds must differ: a job's name contains the seed, but not how long it is healthy.
            seed=run + (0 if healthy_steps else runs),
            fault=stages[(run + index) % len(stages)],
            size=size,
            healthy_steps=healthy_steps,
            faulty_steps=round(LONGEST_SECONDS / STEP_SECONDS / MORE / (1 + size)),
        )
        for run in range(1, runs + 1)
        for index, (healthy_steps, size) in enumerate(
            [*((healthy, size) for size in sizes), (0, START_SIZE)]
        )
    ]


def watch(plan: list[Segment]) -> tuple[dict[str, float], dict[float, list[Fired]]]:
    """Train *plan*; return when each segment's rank became late, and what fired, by interval.

    Raises StackError when a part ends that should not.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        exporter = stack.enter_context(ExporterProcess(folder))
        servers = {
            seconds: stack.enter_context(
                PrometheusProcess(
                    folder / f"{seconds:g}", [exporter.address], interval_seconds=seconds
                )
            )
            for seconds in INTERVALS_SECONDS
        }
        (folder / "plan.json").write_text(json.dumps([one.to_json() for one in plan]))
        training = TrainingProcess(
            folder / "training",
            [str(folder / "plan.json"), str(folder)],
            exporter=exporter.target,
            ranks=RANKS,
            script=("-m", "benchmarks.accuracy.job"),
        )
        stack.enter_context(training)
        fired: dict[float, dict[tuple[str, str], Fired]] = {seconds: {} for seconds in servers}
        shown: dict[tuple[str, str], dict[str, float]] = {}
        while training.exit_code is None:
            for part in (exporter, *servers.values()):
                part.check_alive()
            _note(shown, exporter.live())
            for seconds, prometheus in servers.items():
                for one in _firing(prometheus, shown, fired[seconds]):
                    fired[seconds][one.job_id, one.rank] = one
            time.sleep(POLL_SECONDS)
        if training.exit_code:
            raise training.failure("did not end well")
        log = training.log.read_text()
    began = {key: float(at) for key, at in re.findall(r"(\S+) delayed from ([\d.]+)", log)}
    return began, {seconds: list(found.values()) for seconds, found in fired.items()}


def _note(shown: dict[tuple[str, str], dict[str, float]], page: Mapping[str, Any]) -> None:
    """Record when the exporter's *page* first had each late rank's verdict, and its cause."""
    for job in page["jobs"]:
        for late in job["verdict"]["late"]:
            mine = shown.setdefault((job["job_id"], str(late["rank"])), {})
            mine.setdefault("verdict", time.time())
            if late["cause"]:
                mine.setdefault("cause", time.time())


def _firing(
    prometheus: PrometheusProcess,
    shown: Mapping[tuple[str, str], Mapping[str, float]],
    before: Mapping[tuple[str, str], Fired],
) -> Iterator[Fired]:
    """Yield the stragglers that are named now and were not *before*, with the current time."""
    for alert in prometheus.active_alerts():
        labels: Mapping[str, str] = alert["labels"]
        if alert["state"] != "firing" or labels["alertname"] != STRAGGLER:
            continue
        job_id, rank = labels["job_id"], labels["rank"]
        if (job_id, rank) in before:
            continue
        scrape = f'max(timestamp(rankskew_late_ratio{{job_id="{job_id}",rank="{rank}"}}))'
        evaluation = datetime.fromisoformat(alert["activeAt"]).timestamp()
        moments = {"scrape": prometheus.value(scrape) or evaluation, "evaluation": evaluation}
        yield Fired(
            job_id,
            rank,
            time.time(),
            labels["cause"],
            float(alert["value"]),
            LINE.search(alert["annotations"]["description"]) is not None,
            {**shown.get((job_id, rank), {}), **moments},
        )


def row(
    seconds: float, mine: list[Segment], began: Mapping[str, float], fired: list[Fired]
) -> dict[str, Any]:
    """Return the results of the runs of one kind, *mine*, at one interval.

    Times count from the onset: to the alert, and as medians to the moments before it. *cost off by*
    is the largest difference between an alert's first value and the planned cost: the other ranks
    wait for the delay in each step.
    """
    right, wrong = [], 0
    for segment in mine:
        late = {str(rank) for rank, _ in segment.late()}
        for one in fired:
            if one.job_id == segment.key:
                is_right = one.rank in late and one.at >= began[segment.key]
                right += [one] if is_right else []
                wrong += not is_right
    delays = [one.at - began[one.job_id] for one in right]
    line = {
        moment: [one.moments[moment] - began[one.job_id] for one in right if moment in one.moments]
        for moment in MOMENTS
    }
    size = mine[0].size
    cost = (RANKS - 1) * size / (1 + size)
    return {
        "scrape, s": seconds,
        "healthy before, s": HEALTHY_SECONDS if mine[0].healthy_steps else 0.0,
        "fault, %": size * 100,
        "runs": len(mine),
        "fired": len(right),
        "wrong": wrong,
        **{
            f"{moment} after, s": statistics.median(at) if at else None
            for moment, at in line.items()
        },
        "median, s": statistics.median(delays) if delays else None,
        "max, s": max(delays, default=None),
        "cost off by, %": max((abs(one.gpus / cost - 1) * 100 for one in right), default=None),
        "with its cause": sum(one.cause == CAUSE for one in right),
        "with a line": sum(one.has_line for one in right),
    }


def table_of(result: Row) -> str:
    """Return how long after the onset the alert fired."""
    cells = [tuple(written(value, ".3g") for value in row.values()) for row in result["rows"]]
    return table(tuple(result["rows"][0]), cells)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How soon does the alert fire?")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sizes", default="10,25,100", help="percent of a healthy step")
    options = parser.parse_args()
    sizes = [float(word) / 100 for word in options.sizes.split(",")]
    plan = segments(options.runs, sizes)
    began, fired = watch(plan)
    if missing := [segment.key for segment in plan if segment.key not in began]:
        raise StackError(f"{missing[0]} was never late")
    kinds = dict.fromkeys((segment.healthy_steps, segment.size) for segment in plan)
    rows = [
        row(
            seconds,
            [segment for segment in plan if (segment.healthy_steps, segment.size) == kind],
            began,
            fired[seconds],
        )
        for seconds in INTERVALS_SECONDS
        for kind in kinds
    ]
    write("latency", rows, ("torch",), tables={"latency": table_of})


if __name__ == "__main__":
    main()
