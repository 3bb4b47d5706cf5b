"""Keeps the measurement away from GPUs on which a job runs: each would slow the other down."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rank_probe.check import CannotReport, Running, dry_run, first_snapshot
from rank_probe.collectives.measurements.ending import CannotMeasure
from rank_probe.collectives.measurements.world import World
from rank_probe.process import identity
from rank_probe.report.endpoint import DEFAULT_ENDPOINT

SAY_SO = "wait until it has ended, or measure beside it with --beside-a-job"
# Named in one sentence.
MOST_HOSTS = 4


@dataclass(frozen=True, slots=True)
class RunningHere:
    """What one rank found: *live* says what runs, *note* why it could not look."""

    live: tuple[str, ...]
    note: str | None


def keep_away(world: World, local_rank: int, beside_a_job: bool) -> list[str]:
    """Return notes on what could not be seen; raises CannotMeasure beside a live job."""
    world.says("the look for jobs that run")
    mine = _my_gpu(local_rank) if world.backend == "nccl" else None
    seen = _reported(os.environ, None if mine is None else {mine}, local_rank)
    told = world.exchange({"live": seen.live, "notes": [seen.note] if seen.note else []})
    found = _once(told, world.hosts, "live")
    if found and not beside_a_job:
        raise CannotMeasure(f"{'; '.join(found)}: {SAY_SO}")
    return [
        *(f"measured beside a job: {text}" for text in found),
        *_once(told, world.hosts, "notes"),
    ]


def _once(told: Iterable[Mapping[str, Any]], hosts: Sequence[str], what: str) -> list[str]:
    """Return each sentence once, after the hosts that it is about."""
    about: dict[str, dict[str, None]] = {}
    for one, host in zip(told, hosts, strict=True):
        for text in one[what]:
            about.setdefault(text, {})[host] = None
    return [f"{_names(list(those))}: {text}" for text, those in about.items()]


def _names(hosts: Sequence[str]) -> str:
    more = len(hosts) - MOST_HOSTS
    return ", ".join(hosts[:MOST_HOSTS]) + (f" and {more} more" if more > 0 else "")


def _reported(
    environment: Mapping[str, str], gpus: set[str] | None, local_rank: int
) -> RunningHere:
    """Return the ranks that report to this node's exporter, on *gpus* or, if None, anywhere.

    With GPUs each rank asks about its own; without, one rank of a node asks for all.
    """
    if gpus is None and local_rank:
        return RunningHere((), None)
    known = identity.with_namespace(environment)
    endpoint = known.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT
    try:
        answer = dry_run(endpoint, first_snapshot(known, identity.from_environment(known)), known)
    except CannotReport as problem:
        return RunningHere((), f"no exporter says whether a job runs: {problem}")
    if answer.running is None:
        return RunningHere(
            (), f"the exporter {answer.version} is too old to say whether a job runs"
        )
    return RunningHere(tuple(_live(answer.running, gpus)), None)


def _live(running: Iterable[Running], gpus: set[str] | None) -> Iterator[str]:
    for job in running:
        # A rank whose GPU is not known may be on any.
        if gpus is None or not job.gpu_uuids or gpus & set(job.gpu_uuids):
            name = f"job {job.job_id!r}" if job.job_id else "another user's job"
            yield f"1 rank of {name} runs" if job.ranks == 1 else f"{job.ranks} ranks of {name} run"


def _my_gpu(local_rank: int) -> str | None:
    import torch

    if local_rank >= torch.cuda.device_count():
        return None  # Said with more words when it takes its device.
    return f"GPU-{torch.cuda.get_device_properties(local_rank).uuid}"
