"""Why naive numbers blame the victims: one slow rank of four, in naive numbers and in ours.

Real gloo ranks run demo/train.py with a delay of half a step on rank 2, planted in each stage in
turn; the figures come from the exporter's /metrics at the end of the run.
"""

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.report import write
from devstack.parts import ExporterProcess, TrainingProcess
from devstack.process import get, wait_for
from rank_probe.wire.stages import STAGES

RANKS, STEPS, LATE, DELAY = 4, 60, 2, 0.1
FAULTS = ("none", "data", "forward", "backward", "optimizer", "after_optimizer")

# Per rank: milliseconds per step in each stage.
Job = Mapping[int, Mapping[str, float]]


def measure(fault: str) -> Job:
    """Run the training with *fault* and return what its ranks counted."""
    with tempfile.TemporaryDirectory() as name, ExporterProcess(Path(name)) as exporter:
        arguments = ["--steps", str(STEPS), "--fault", fault, "--delay", str(DELAY)]
        job = {"exporter": exporter.target, "job_id": fault, "ranks": RANKS}
        with TrainingProcess(Path(name), arguments, **job) as training:  # type: ignore[arg-type]
            if wait_for(lambda: training.exit_code, 180, every=0.5) != 0:
                raise training.failure("did not end well")
        return _stages_of(get(f"{exporter.url}/metrics").decode())


def _stages_of(text: str) -> Job:
    steps: dict[int, float] = {}
    seconds: dict[tuple[int, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "rankskew_steps_total":
                steps[int(sample.labels["rank"])] = sample.value
            elif sample.name == "rankskew_stage_seconds_total":
                seconds[int(sample.labels["rank"]), sample.labels["stage"]] = sample.value
    return {
        rank: {stage: 1e3 * seconds.get((rank, stage), 0.0) / steps[rank] for stage in STAGES}
        for rank in sorted(steps)
    }


def row(fault: str, job: Job) -> dict[str, Any]:
    """Return what a dashboard of step times, one of whole backwards, and ours show of *job*."""
    step = {rank: sum(stages.values()) for rank, stages in job.items()}
    wait = {rank: stages["sync"] for rank, stages in job.items()}
    naive = {rank: stages["backward"] + stages["sync"] for rank, stages in job.items()}
    late = min(wait, key=lambda rank: wait[rank])
    excess = {
        stage: job[late][stage] - statistics.median(stages[stage] for stages in job.values())
        for stage in STAGES
        if stage != "sync"
    }
    stage = max(excess, key=lambda name: excess[name])
    return {
        "delay on rank 2 in": fault,
        "step time, max/median": max(step.values()) / statistics.median(step.values()),
        "backward with its wait: rank 2, ms": naive[LATE],
        "the others, ms": statistics.median(naive[rank] for rank in naive if rank != LATE),
        "least wait, ms": wait[late],
        "median wait, ms": statistics.median(wait.values()),
        "waits least": late,
        "furthest ahead in": stage,
        "by, ms": excess[stage],
    }


def main() -> None:
    """Measure and print."""
    write("masking", [row(fault, measure(fault)) for fault in FAULTS])


if __name__ == "__main__":
    main()
