"""Jobs as the exporters of their nodes see them, from each one's live summary."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from exporter.live import states
from exporter.live.jobs import JobView
from exporter.live.page import AS_JSON, LiveSummary
from exporter.live.ranks import RankView
from rankskew.client.fetch import ANYONE, Access, Trouble, get_json
from rankskew.top.model import (
    NO_RANK,
    STATES,
    UNKNOWN,
    FleetStatus,
    JobStatus,
    Rank,
    costliest_first,
    explained,
    holds_up,
    in_order,
    newest,
    no_such_job,
    worth_a_row,
)

LIVE_PATH: Final = "/api/v1/live"
# The stage that the rules give to a rank that has gone silent.
FROZEN: Final = "frozen"
# States of a job on one node that say less than a verdict from another node.
SAYS_LITTLE: Final = (states.STARTING, states.FINISHED, states.NO_PROBE, UNKNOWN)


def read_exporters(
    urls: Sequence[str], job_id: str | None = None, access: Access = ANYONE
) -> FleetStatus:
    """Return what the exporters at *urls* show together; what one cannot say is a trouble."""
    summaries, silent = ask_all(urls, access)
    troubles = [str(each) for each in silent]
    jobs = in_order(merged(summaries))
    if not jobs and summaries:
        troubles.append(NO_RANK)
    elif job_id is not None and summaries:
        chosen = [job for job in jobs if job.job_id == job_id]
        troubles += [] if chosen else [no_such_job(job_id, jobs)]
        jobs = chosen
    shown = [replace(job, ranks=worth_a_row(job)) for job in jobs]
    return FleetStatus(", ".join(urls), shown, troubles, time.time())


# ---- Asking --------------------------------------------------------------------------------------


def ask_all(
    urls: Sequence[str], access: Access = ANYONE
) -> tuple[list[LiveSummary], list[Trouble]]:
    """Return the live summaries of the exporters at *urls*, and why there is none of the others.

    All are asked at once, in daemon threads: one that hangs does not delay the exit.
    """
    answers: dict[str, LiveSummary | Trouble] = {}

    def ask(url: str) -> None:
        try:
            answers[url] = read_document(get_json(url, LIVE_PATH, access=access), url)
        except Trouble as trouble:
            answers[url] = trouble

    threads = [
        threading.Thread(target=ask, args=[url], name=f"ask {url}", daemon=True) for url in urls
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [answers.get(url) or Trouble(f"{url} has not been asked.") for url in urls]
    silent = [each for each in found if isinstance(each, Trouble)]
    return [each for each in found if not isinstance(each, Trouble)], silent


def read_document(document: Any, url: str) -> LiveSummary:
    """Return the live summary of the exporter at *url*; raises Trouble if *document* is none.

    Within a job, fields that another release has in another form are left out. A field without a
    default takes its whole entry with it.
    """
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
        raise Trouble(
            f"{url} answers, but it is not a Rankskew exporter; --prometheus URL asks a Prometheus."
        )
    while True:
        try:
            found = AS_JSON.validate_python(document)
            return replace(found, host=found.host or urlsplit(url).netloc)
        except ValidationError as error:
            misfits = {
                each["loc"][:-1] if each["type"] == "missing" else each["loc"]
                for each in error.errors(include_url=False, include_input=False)
            }
        for place in sorted(misfits, reverse=True):
            if len(place) < (3 if place[:1] == ("jobs",) else 2):
                raise Trouble(f"{url} is an exporter of another release, which this cannot read.")
            del reduce(getitem, place[:-1], document)[place[-1]]


# ---- Jobs of several nodes -----------------------------------------------------------------------


def merged(summaries: Iterable[LiveSummary]) -> list[JobStatus]:
    """Return each job once, with the most telling verdict and the ranks of all nodes."""
    by_id: dict[str, list[tuple[JobStatus, float]]] = {}
    for summary in summaries:
        for job in summary.jobs:
            seen = _job(job, summary.host), summary.timestamp_seconds or 0.0
            by_id.setdefault(job.job_id, []).append(seen)
    return [_merge(each) for each in by_id.values()]


def _merge(seen: Sequence[tuple[JobStatus, float]]) -> JobStatus:
    """Merge what the nodes show: the newest verdict, unless a node sees that ranks are gone.

    All nodes repeat one verdict. The node of a late or stuck rank knows most of it and its cause.
    """
    jobs = [job for job, _ in seen]
    told = max(seen, key=lambda each: (_weight(each[0]), _names_here(each[0]), each[1]))[0]
    by_node = sorted((each for job in jobs for each in job.late), key=lambda each: each.is_here)
    causes = {each.rank: each.cause for each in by_node if each.cause is not None}
    ranks = newest(rank for job in jobs for rank in job.ranks)
    here = {rank.rank for rank in ranks}
    late = [
        replace(each, cause=causes.get(each.rank), is_here=each.rank in here) for each in told.late
    ]
    by_rank = {each.rank: each for each in late}
    return explained(
        replace(
            told,
            late=late,
            ranks=[replace(rank, late=by_rank.get(rank.rank)) for rank in ranks],
            ranks_seen=len(ranks),
            steps=max(job.steps or 0 for job in jobs),
        )
    )


def _weight(job: JobStatus) -> int:
    if job.state in (states.HUNG, states.RANKS_MISSING):
        return 4 - STATES.index(job.state)
    return 0 if job.state in SAYS_LITTLE else -1 if job.state == states.STANDS_STILL else 1


def _names_here(job: JobStatus) -> int:
    stuck = any(holds_up(rank, job.state) for rank in job.ranks)
    return stuck + sum(late.is_here for late in job.late)


def _job(job: JobView, node: str) -> JobStatus:
    verdict = job.verdict
    state = verdict.state if verdict.state in STATES else UNKNOWN
    ranks = [_rank(each, node) for each in job.ranks]
    found = JobStatus(
        job_id=job.job_id,
        state=state,
        sentence=verdict.sentence,
        details=verdict.details,
        first_action=verdict.first_action,
        world_size=job.world_size or None,
        gpus_lost=sum(verdict.gpus_lost.values()) if verdict.gpus_lost else None,
        lost_by_kind=verdict.gpus_lost,
        late=costliest_first(verdict.late),
        slowdown=verdict.slowdown,
        changes=verdict.changes,
        together=verdict.together,
        steps=job.steps,
        step_seconds=job.step_seconds,
        coverage=verdict.coverage,
        reason=verdict.reason,
        alert=verdict.alert,
        ranks=ranks,
    )
    if state != states.HUNG:
        return found
    holding = next((rank for rank in ranks if holds_up(rank, state)), None)
    ages = [each.last_step_age_seconds for each in ranks if each.last_step_age_seconds is not None]
    if far := verdict.suspect:
        found = replace(found, culprit=(int(far["rank"]), far.get("stage", FROZEN)))
    elif holding is not None:
        stage = FROZEN if holding.silent else holding.stage or UNKNOWN
        found = replace(found, culprit=(holding.rank, stage))
    return replace(found, since_seconds=min(ages, default=None))


def _rank(rank: RankView, node: str) -> Rank:
    return Rank(
        rank=rank.rank,
        node=rank.host or node,
        local_rank=rank.local_rank,
        gpu=None if rank.gpu is None else str(rank.gpu),
        gpu_uuid=rank.gpu_uuid,
        pid=rank.pid,
        stage_seconds=rank.stage_seconds,
        stage=rank.stage or None,
        stage_elapsed_seconds=rank.stage_elapsed_seconds,
        # A rank without the probe is in no stage, and reports nothing.
        report_age_seconds=rank.heartbeat_age_seconds if rank.stage else None,
        last_step_age_seconds=rank.last_step_age_seconds,
        silent=rank.silent,
        finished=rank.finished,
    )
