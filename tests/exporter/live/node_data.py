"""What /api/v1/live says of made-up nodes: for tests of the page, and to look at it."""

from dataclasses import asdict
from typing import Any

from exporter.causes.model import Cause, Guess
from exporter.live import states
from exporter.live.first_actions import RESTART

STAGES = {"data": 0.05, "forward": 0.1, "backward": 0.2, "sync": 0.15}
SLOW = {"data": 0.19, "forward": 0.1, "backward": 0.2, "sync": 0.01}


def rank(number: int, **changes: Any) -> dict[str, Any]:
    """A rank like all others, with ten minutes behind it."""
    return {
        "rank": number,
        "local_rank": str(number % 8),
        "gpu_uuid": f"GPU-{number % 8}",
        "peer_group": "all",
        "steps": 1_200,
        "stage_seconds": STAGES,
        "step_seconds": 0.5,
        "wait_seconds": 0.15,
        "stage": "sync",
        "stage_elapsed_seconds": 0.1,
        "heartbeat_age_seconds": 0.5,
        "last_step_age_seconds": 0.5,
        "silent": False,
        "finished": False,
        "level": "stages",
        "late_lines": [],
        "pid": 20_773 + number,
        "host": "gpu-12",
        "gpu": number % 8,
        "history": [STAGES] * 60,
    } | changes


def gpu(number: int, **changes: Any) -> dict[str, Any]:
    """A GPU that is busy and well."""
    return {
        "gpu": number,
        "gpu_uuid": f"GPU-{number}",
        "name": "NVIDIA H100 80GB HBM3",
        "up": True,
        "utilization_ratio": 0.97,
        "memory_used_bytes": 71 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "temperature_celsius": 64,
        "power_watts": 612.4,
        "sm_clock_hertz": 1.98e9,
        "throttle_reasons": [],
        "pcie_link_width": 16,
        "pcie_link_width_max": 16,
        "foreign_processes": 0,
        "ranks": [{"job_id": "demo", "rank": number}],
    } | changes


def job(state: str, sentence: str, ranks: list[dict[str, Any]], **said: Any) -> dict[str, Any]:
    """A job in *state*; *said* is the rest of its verdict."""
    verdict: dict[str, Any] = {
        "state": state,
        "sentence": sentence,
        "reason": None,
        "judge": "join",
        "late": [],
        "details": [],
        "gpus_lost": {},
        "slowdown": None,
        "coverage": 1.0,
        "first_action": None,
        "runbook": states.RUNBOOKS.get(state),
        "alert": states.alert_of(state),
    }
    return {
        "job_id": "demo",
        "world_size": len(ranks),
        "coverage": f"{len(ranks)} of {len(ranks)} ranks",
        "steps": 1_200,
        "step_seconds": 0.5,
        "verdict": verdict | said,
        "ranks": ranks,
        "probed": True,
    }


def live(*jobs: dict[str, Any], gpus: int = 0, **changes: Any) -> dict[str, Any]:
    """What the exporter serves with these *jobs* and so many *gpus*."""
    return {
        "version": "9.8.7",
        "host": "gpu-12",
        "grafana_url": None,
        "timestamp_seconds": 1.0,
        "window_seconds": 60.0,
        "gpus_visible": gpus,
        "jobs": list(jobs),
        "gpus": [gpu(number) for number in range(gpus)],
    } | changes


LATE = {
    "rank": 2,
    "peer_group": "all",
    "stage": "data",
    "kind": "persistent",
    "ratio": 0.4,
    "gpus_lost": 0.84,
    "late_for_seconds": 35.0,
    "is_here": True,
    "is_told": True,
    "cause": None,
}
CAUSE = Cause(
    "slow_device",
    "clocks",
    0.92,
    "its SM clock is 1.41 GHz, its peers' 1.95: too hot, 87 °C",
    "nvidia-smi -q -i 2 on gpu-12",
    "sm_clock_hertz",
    1.41e9,
    1.95e9,
    (Guess("cpu", "run_queue", 0.2, "it waits for a CPU 9 % of the time, its peers 1 %"),),
)
HOT = asdict(CAUSE) | {"unit": "hertz", "others": [asdict(each) for each in CAUSE.others]}
SENTENCE = "Rank 2 is slow loading data; 0.84 of 4 GPUs wait for it."
DETAILS = ["Steps take 1.39 times as long as without it.", "GPUs lost: 0.84 to <late> ranks."]
LINES = [{"stage": "data", "place": "Corpus.__next__ (corpus.py:41)", "share": 0.71}]


def straggler(
    job_id: str = "demo",
    kind: str = "persistent",
    count: int = 4,
    cause: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A job whose rank 2 is late in this way, and rank 17 of another node too."""
    ranks = [rank(number) for number in range(count)]
    ranks[2] |= {
        "stage_seconds": SLOW,
        "wait_seconds": 0.01,
        "stage": "data",
        "late_lines": LINES,
        "history": [STAGES] * 30 + [None] * 2 + [SLOW] * 28,
    }
    late = [
        LATE | {"rank": 170, "kind": kind, "is_here": False},
        LATE | {"kind": kind, "cause": cause},
    ]
    is_late = kind not in ("mild", "unsynced")
    told = {
        "late": late,
        "details": [*DETAILS, *([f"Cause: {cause['sentence']}."] if cause else [])],
        "gpus_lost": {"persistent": 1.68, "common": 0.1} if is_late else {},
        "first_action": "py-spy dump --pid 20775 on gpu-12" if is_late else None,
    }
    return job("straggler" if is_late else "healthy", SENTENCE, ranks, **told) | {"job_id": job_id}


def healthy(count: int = 4) -> dict[str, Any]:
    """A job in which nobody is late."""
    even = f"No rank is late: the {count} ranks of the job need the same time for their work."
    return job("healthy", even, [rank(number) for number in range(count)])


def hung() -> dict[str, Any]:
    """A job of eight that rank 5 holds up."""
    stuck = {"stage_elapsed_seconds": 95.0, "last_step_age_seconds": 96.0}
    ranks = [rank(number, **stuck) for number in range(8)]
    ranks[5] |= {"stage": "checkpoint"}
    return job(
        "hung",
        "No step for 96 s, 8 of 8 GPUs wait: rank 5 is in checkpoint; 7 of 8 ranks wait in sync.",
        ranks,
        gpus_lost={"hung": 8.0},
        first_action="py-spy dump --pid 20778 on gpu-12",
    )


def no_probe() -> dict[str, Any]:
    """A job that is known from its processes on the GPUs."""
    unknown = {"stage_seconds": None, "step_seconds": None, "wait_seconds": None, "stage": ""}
    ranks = [rank(number, steps=0, history=[], **unknown) for number in range(4)]
    sentence = "No probe reports: 4 of 4 ranks run on this node, and how they keep up is not known."
    said = job("no_probe", sentence, ranks, first_action=RESTART)
    return said | {"probed": False, "steps": 0, "step_seconds": None, "job_id": "bert"}


def troubled_gpus() -> list[dict[str, Any]]:
    """Sixteen GPUs, some of them with something wrong."""
    gpus = [gpu(number) for number in range(16)]
    gpus[2] |= {"throttle_reasons": ["sw_thermal_slowdown", "hw_thermal_slowdown"]}
    gpus[5] |= {"pcie_link_width": 8, "foreign_processes": 2}
    gpus[9] |= {"up": False}
    return gpus
