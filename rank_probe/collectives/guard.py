"""Keeps the measurement away from GPUs on which a job runs: each would slow the other down."""

import os
from collections.abc import Sequence

from rank_probe.check import CannotReport, dry_run, first_snapshot
from rank_probe.collectives.world import CannotMeasure, World
from rank_probe.process import identity
from rank_probe.report.endpoint import DEFAULT_ENDPOINT

SAY_SO = "wait until it has ended, or measure beside it with --beside-a-job"
# Named in one sentence.
MOST_HOSTS = 4


def keep_away(world: World, beside_a_job: bool) -> list[str]:
    """Return notes on what could not be seen; raises CannotMeasure beside a live job."""
    world.says("the look for jobs that run")
    every_rank = world.exchange(_reported(world))
    found = _once([live for live, _ in every_rank], world.hosts)
    if found and not beside_a_job:
        raise CannotMeasure("" if world.rank else f"{'; '.join(found)}: {SAY_SO}")
    beside = [f"measured beside a job: {text}" for text in found]
    return beside + _once([notes for _, notes in every_rank], world.hosts)


def _once(every_rank: Sequence[Sequence[str]], hosts: Sequence[str]) -> list[str]:
    """Return each sentence once, after the hosts that it is about."""
    about: dict[str, dict[str, None]] = {}
    for sentences, host in zip(every_rank, hosts, strict=True):
        for text in sentences:
            about.setdefault(text, {})[host] = None
    found = []
    for text, those in about.items():
        more = len(those) - MOST_HOSTS
        names = ", ".join(list(those)[:MOST_HOSTS]) + (f" and {more} more" if more > 0 else "")
        found.append(f"{names}: {text}")
    return found


def _reported(world: World) -> tuple[list[str], list[str]]:
    """Return which ranks report to this node's exporter, and why that cannot be seen.

    With GPUs each rank asks about its own; without, one rank of a node asks for all.
    """
    if not world.on_gpu and world.me.local_rank:
        return [], []
    known = identity.with_namespace(os.environ)
    endpoint = known.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT
    try:
        answer = dry_run(endpoint, first_snapshot(known, identity.from_environment(known)), known)
    except CannotReport as problem:
        return [], [f"no exporter says whether a job runs: {problem}"]
    if answer.running is None:
        return [], [f"the exporter {answer.version} is too old to say whether a job runs"]
    gpu, live = _my_gpu(world.me.local_rank) if world.on_gpu else None, []
    for job in answer.running:
        # A rank whose GPU is not known may be on any.
        if gpu is None or not job.gpu_uuids or gpu in job.gpu_uuids:
            name = f"job {job.job_id!r}" if job.job_id else "another user's job"
            many = f"{job.ranks} ranks of {name} run"
            live.append(f"1 rank of {name} runs" if job.ranks == 1 else many)
    return live, []


def _my_gpu(local_rank: int) -> str | None:
    import torch

    if local_rank >= torch.cuda.device_count():
        return None  # Said with more words when it takes its device.
    return f"GPU-{torch.cuda.get_device_properties(local_rank).uuid}"
