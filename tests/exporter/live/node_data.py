"""What /api/v1/live says of made-up nodes: for tests of the page, and to look at it."""

import json
from dataclasses import asdict, replace
from typing import Any

from exporter.causes.model import Cause, Guess
from exporter.live import states
from exporter.live.causes import LineView, view_cause
from exporter.live.first_actions import RESTART
from exporter.live.gpus import GpuView, RankOf, view_gpus
from exporter.live.jobs import JobView
from exporter.live.page import AS_JSON, LiveSummary
from exporter.live.ranks import RankView, view_rank
from exporter.live.sentences import view_late
from exporter.live.summary import JobVerdict
from exporter.ranks.store import HeldRank
from tests.exporter.live import busy_node
from tests.exporter.snapshots import late, snapshot

STAGES = {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15}
SLOW = {"data": 0.19, "forward": 0.1, "backward": 0.2, "sync": 0.01}


def rank(number: int, **changes: Any) -> RankView:
    """A rank like all others, with ten minutes behind it."""
    info = {"local_rank": str(number % 8), "gpu_uuid": f"GPU-{number % 8}"}
    held = HeldRank(snapshot(rank=number, pid=20_773 + number, stage="sync", rank_info=info), 0.0)
    view = view_rank(held, STAGES, 0.5, "gpu-12")
    return replace(view, **{"gpu": number % 8, "last_step_age_seconds": 0.5, **changes})


def gpu(number: int) -> GpuView:
    """A GPU that is busy and well."""
    (view,) = view_gpus([busy_node.gpu(number)], (), {})
    return replace(view, foreign_processes=0, ranks=[RankOf("demo", number)])


def job(state: str, sentence: str, ranks: list[RankView], **said: Any) -> JobView:
    """A job in *state*; *said* is the rest of its verdict."""
    alert, runbook = states.alert_of(state), states.RUNBOOKS.get(state)
    known: dict[str, Any] = {"judge": "join", "coverage": 1.0, "runbook": runbook, "alert": alert}
    verdict = JobVerdict(state, sentence, **known | said)
    here = f"{len(ranks)} of {len(ranks)} ranks"
    return JobView("demo", len(ranks), here, 1_200, 0.5, verdict, ranks)


def live(*jobs: JobView, gpus: int = 0, grafana_url: str | None = None) -> dict[str, Any]:
    """What the exporter serves with these *jobs* and so many *gpus*."""
    shown = [gpu(number) for number in range(gpus)]
    summary = LiveSummary("9.8.7", "gpu-12", grafana_url, 1.0, 60.0, gpus, list(jobs), shown)
    answer: dict[str, Any] = json.loads(AS_JSON.dump_json(summary))
    return answer


CAUSE = Cause(
    "slow_device",
    "clocks",
    0.92,
    "its SM clock is 1.41 GHz, its peers' 1.95: too hot, 87 °C",
    "`nvidia-smi -q -i 2` on gpu-12",
    "sm_clock_hertz",
    1.41e9,
    1.95e9,
    (Guess("cpu", "run_queue", 0.2, "it waits for a CPU 9 % of the time, its peers 1 %"),),
)
HOT = asdict(view_cause(CAUSE))
SENTENCE = "Rank 2 is slow loading data; 0.84 of 4 GPUs wait for it."
DETAILS = ["Steps take 1.39 times as long as without it.", "GPUs lost: 0.84 to <late> ranks."]


def straggler(
    job_id: str = "demo",
    kind: str = "persistent",
    count: int = 4,
    cause: Cause | None = None,
    costs_enough: bool = True,
    judge: str = "join",
) -> JobView:
    """A job whose rank 2 is late in this way, and rank 170 of another node too."""
    ranks = [rank(number) for number in range(count)]
    line = LineView("data", "Corpus.__next__ (corpus.py:41)", 0.71)
    slow = {"stage_seconds": SLOW, "wait_seconds": 0.01, "stage": "data"}
    ranks[2] = rank(2, late_lines=[line], **slow)
    figures = {"kind": kind, "ratio": 0.4, "gpus": {"data": 0.84}, "since_seconds": 35.0}
    ours = view_late(late(**figures), 0.0, range(count), costs_enough=costs_enough)
    is_late = kind not in ("mild", "unsynced")
    action = "py-spy dump --pid 20775 on gpu-12" if cause is None else cause.first_action
    told = {
        "judge": judge,
        "late": [
            replace(ours, rank=170, is_here=False),
            replace(ours, cause=None if cause is None else view_cause(cause)),
        ],
        "details": [*DETAILS, *([f"Cause: {cause.sentence}."] if cause else [])],
        "gpus_lost": {"persistent": 1.68, "common": 0.1} if is_late else {},
        "first_action": action if is_late else None,
    }
    view = job("straggler" if is_late else "healthy", SENTENCE, ranks, **told)
    return replace(view, job_id=job_id)


def healthy(count: int = 4) -> JobView:
    """A job in which nobody is late."""
    even = f"No rank is late: the {count} ranks of the job need the same time for their work."
    return job("healthy", even, [rank(number) for number in range(count)])


def hung() -> JobView:
    """A job of eight that rank 5 holds up."""
    stuck = {"stage_elapsed_seconds": 95.0, "last_step_age_seconds": 96.0}
    ranks = [rank(number, **stuck) for number in range(8)]
    ranks[5] = rank(5, stage="checkpoint", **stuck)
    return job(
        "hung",
        "No step for 96 s, 8 of 8 GPUs wait: rank 5 is in checkpoint; 7 of 8 ranks wait in sync.",
        ranks,
        gpus_lost={"hung": 8.0},
        first_action="py-spy dump --pid 20778 on gpu-12",
    )


def no_probe() -> JobView:
    """A job that is known from its processes on the GPUs."""
    unknown = {"stage_seconds": None, "step_seconds": None, "wait_seconds": None, "stage": ""}
    ranks = [rank(number, steps=0, **unknown) for number in range(4)]
    sentence = "No probe reports: 4 of 4 ranks run on this node, and how they keep up is not known."
    said = job("no_probe", sentence, ranks, first_action=RESTART)
    return replace(said, probed=False, steps=0, step_seconds=None, job_id="bert")


def troubled_gpus() -> list[dict[str, Any]]:
    """Sixteen GPUs, some of them with something wrong."""
    gpus: list[dict[str, Any]] = live(gpus=16)["gpus"]
    gpus[2] |= {"throttle_reasons": ["sw_thermal_slowdown", "hw_thermal_slowdown"]}
    gpus[5] |= {"pcie_link_width": 8, "foreign_processes": 2}
    gpus[9] |= {"up": False}
    return gpus
