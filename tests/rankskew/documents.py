"""Live summaries as an exporter serves them."""

from typing import Any, Final

STAGES: Final = {"optimizer": 0.012, "data": 0.02, "forward": 0.09, "backward": 0.18, "sync": 0.17}
SLOW_DATA: Final = STAGES | {"data": 0.18, "sync": 0.01}
CAUSE: dict[str, Any] = {
    "cause": "input",
    "detail": "reads",
    "share": 0.83,
    "sentence": "it reads 240 MB/s, its peers 2",
    "first_action": "`iotop -p 4002` on node1",
    "figure": "read_bytes_per_second",
    "value": 240e6,
    "peers_value": 2e6,
    "unit": "bytes_per_second",
    "others": [{"cause": "gc", "detail": "", "share": 0.1, "sentence": "garbage collection"}],
}


def live(*jobs: dict[str, Any], host: str = "node1", at: float = 1000.0) -> dict[str, Any]:
    return {
        "version": "0",
        "host": host,
        "grafana_url": None,
        "timestamp_seconds": at,
        "window_seconds": 60.0,
        "gpus_visible": None,
        "gpus": [],
        "jobs": list(jobs),
    }


def job(job_id: str, state: str = "healthy", **changes: Any) -> dict[str, Any]:
    """Return a job of eight ranks, four of them here; *changes* are fields of its verdict."""
    ranks = changes.pop("ranks", None)
    verdict: dict[str, Any] = {
        "state": state,
        "sentence": f"Job {job_id} is {state}.",
        "reason": None,
        "late": [],
        "details": [],
        "gpus_lost": {"persistent": 0.0, "common": 0.1},
        "slowdown": 1.0,
        "coverage": 1.0,
        "first_action": None,
        "alert": None,
    }
    return {
        "job_id": job_id,
        "world_size": 8,
        "coverage": "4 of 8 ranks",
        "steps": 1200,
        "step_seconds": 0.472,
        "verdict": verdict | changes,
        "ranks": [rank(each) for each in range(4)] if ranks is None else ranks,
    }


def rank(number: int, host: str = "node1", **changes: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "local_rank": str(number % 4),
        "gpu_uuid": f"GPU-{number}",
        "gpu": number % 4,
        "peer_group": "all",
        "steps": 1200,
        "step_seconds": 0.472,
        "wait_seconds": 0.17,
        "level": "stages",
        "host": host,
        "pid": 4000 + number,
        "stage_seconds": STAGES,
        "stage": "forward",
        "stage_elapsed_seconds": 0.1,
        "heartbeat_age_seconds": 0.4,
        "last_step_age_seconds": 0.2,
        "silent": False,
        "finished": False,
        "late_lines": [],
    } | changes


def late(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "peer_group": "all",
        "stage": "data",
        "kind": "persistent",
        "ratio": 0.51,
        "gpus_lost": 1.9,
        "late_for_seconds": 240.0,
        "is_here": True,
    } | changes


def straggler(job_id: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return a job whose rank 2 is slow loading data."""
    return job(
        job_id,
        "straggler",
        **{
            "sentence": "Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it.",
            "details": ["Steps take 1.48 times as long as without it."],
            "late": [late(2)],
            "gpus_lost": {"persistent": 1.9, "common": 0.04},
            "slowdown": 1.48,
            "first_action": "Check the disks with iostat -x 1.",
            "ranks": [
                rank(each, stage_seconds=SLOW_DATA if each == 2 else STAGES) for each in range(4)
            ],
        }
        | changes,
    )


def hung(job_id: str = "vision", **changes: Any) -> dict[str, Any]:
    """Return a job that waits for rank 1, which is stuck in backward."""
    stuck: dict[str, Any] = {"last_step_age_seconds": 190.0, "stage_elapsed_seconds": 190.0}
    ranks = [rank(each, stage="backward" if each == 1 else "sync", **stuck) for each in range(4)]
    said = "No step for 3 min: rank 1 is in backward; 3 of 4 ranks wait in sync."
    return job(job_id, "hung", sentence=said, gpus_lost={"hung": 8.0}, **{"ranks": ranks} | changes)
