"""Jobs as the exporters of their nodes see them, from each one's live summary."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from exporter.live import states
from exporter.live.sentences import LateView
from rankskew.client.access import ANYONE, Access
from rankskew.client.fetch import Trouble, get_json
from rankskew.client.fields import label, mapping, number, numbers, objects, text, texts, whole
from rankskew.top import causes
from rankskew.top.model import (
    NO_RANK,
    STATES,
    UNKNOWN,
    FleetStatus,
    JobStatus,
    Rank,
    holds_up,
    in_order,
    no_such_job,
    worth_a_row,
)
from rankskew.top.verdict_fields import read_change, read_late, read_together

Read = TypeVar("Read")

LIVE_PATH: Final = "/api/v1/live"
MOST_TROUBLES: Final = 4
# As the rules say where a rank is that has gone silent.
FROZEN: Final = "frozen"
# What one node says of a job that others see too: these say less than a verdict.
SAYS_LITTLE: Final = (states.STARTING, states.FINISHED, states.NO_PROBE, UNKNOWN)


@dataclass(frozen=True, slots=True)
class JobOnNode:
    """A *job* with all its ranks on one node, *at* a time of that node's clock."""

    job: JobStatus
    at: float


def read_exporters(
    urls: Sequence[str], job_id: str | None = None, access: Access = ANYONE
) -> FleetStatus:
    """Return what the exporters at *urls* show together; what one cannot say is a trouble."""
    found = ask_all(urls, read_document, access)
    troubles = _few([str(each) for each in found if isinstance(each, Trouble)])
    documents = [each for each in found if not isinstance(each, Trouble)]
    jobs = in_order(merged(seen for document in documents for seen in document))
    if not jobs and documents:
        troubles.append(NO_RANK)
    elif job_id is not None and documents:
        chosen = [job for job in jobs if job.job_id == job_id]
        troubles += [] if chosen else [no_such_job(job_id, jobs)]
        jobs = chosen
    focus = _focused(jobs[0]) if len(jobs) == 1 else None
    return FleetStatus(", ".join(urls), jobs, troubles, focus, time.time())


def _few(troubles: Sequence[str]) -> list[str]:
    """Return a line for each exporter, and one for all others if there are many."""
    if len(troubles) <= MOST_TROUBLES:
        return list(troubles)
    others = len(troubles) - MOST_TROUBLES + 1
    return [*troubles[: MOST_TROUBLES - 1], f"{others} more exporters cannot be read either."]


def _focused(job: JobStatus) -> JobStatus:
    shown, left_out = worth_a_row(job.ranks, job.state)
    return replace(job, ranks=shown, ranks_left_out=left_out)


def ask_all(
    urls: Sequence[str], read: Callable[[Any, str], Read], access: Access = ANYONE
) -> list[Read | Trouble]:
    """Return what *read* makes of the live summary of each URL, a Trouble where there is none.

    Ask all at once; daemon threads, so that one that hangs does not delay the end.
    """
    answers: list[Read | Trouble] = [Trouble(f"{url} has not been asked.") for url in urls]

    def ask(place: int, url: str) -> None:
        try:
            answers[place] = read(get_json(url, LIVE_PATH, access=access), url)
        except Trouble as trouble:
            answers[place] = trouble

    threads = [
        threading.Thread(target=ask, args=each, name=f"ask {each[1]}", daemon=True)
        for each in enumerate(urls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def read_document(document: Any, url: str) -> list[JobOnNode]:
    """Return the jobs in the live summary of the exporter at *url*; raises Trouble if it is none.

    Fields that an earlier exporter lacks are None.
    """
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
        raise Trouble(
            f"{url} answers, but it is not a Rankskew exporter; --prometheus URL asks a Prometheus."
        )
    node = text(document.get("host")) or urlsplit(url).netloc
    at = number(document.get("timestamp_seconds")) or 0.0
    jobs = [_job(each, node) for each in objects(document["jobs"])]
    return [JobOnNode(job, at) for job in jobs if job is not None]


def merged(seen: Iterable[JobOnNode]) -> list[JobStatus]:
    """Return each job once, with the most telling verdict and the ranks of all nodes."""
    by_id: dict[str, list[JobOnNode]] = {}
    for each in seen:
        by_id.setdefault(each.job.job_id, []).append(each)
    return [_merge(each) for each in by_id.values()]


def _merge(seen: Sequence[JobOnNode]) -> JobStatus:
    """All nodes repeat one verdict, so the newest counts, unless a node sees that ranks are gone.

    The node with the late or stuck rank can say more about it than the others.
    """
    told = max(seen, key=lambda each: (_weight(each.job), _names_here(each.job), each.at)).job
    told = _with_causes(told, [late for each in seen for late in each.job.late])
    late = {late.rank: late for late in told.late}
    newest: dict[int, Rank] = {}
    for rank in (rank for each in seen for rank in each.job.ranks):
        other = newest.get(rank.rank)
        if other is None or _age(rank) < _age(other):
            newest[rank.rank] = replace(rank, late=late.get(rank.rank))
    ranks = [newest[rank] for rank in sorted(newest)]
    steps = max((each.job.steps for each in seen if each.job.steps is not None), default=None)
    return replace(told, ranks=ranks, ranks_seen=len(ranks), steps=steps)


def _with_causes(job: JobStatus, late: Sequence[LateView]) -> JobStatus:
    """Return *job* with the causes of its late ranks, each of which only its own node knows."""
    known = {each.rank: each.cause for each in late if each.cause is not None}
    those = [replace(each, cause=known.get(each.rank)) for each in job.late]
    return causes.explained(replace(job, late=those))


def _weight(job: JobStatus) -> int:
    if job.state in (states.HUNG, states.RANKS_MISSING):
        return 4 - STATES.index(job.state)
    return 0 if job.state in SAYS_LITTLE else 1


def _names_here(job: JobStatus) -> int:
    stuck = job.state == states.HUNG and job.culprit is not None
    return stuck + sum(late.is_here for late in job.late)


def _age(rank: Rank) -> float:
    return rank.report_age_seconds or 0.0


def _job(said: Mapping[str, Any], node: str) -> JobStatus | None:
    job_id = text(said.get("job_id"))
    if job_id is None:
        return None
    verdict = mapping(said.get("verdict"))
    late = [each for each in map(read_late, objects(verdict.get("late"))) if each is not None]
    late.sort(key=lambda each: (not each.is_called_late, -each.gpus_lost))
    found = (_rank(each, node) for each in objects(said.get("ranks")))
    ranks = [each for each in found if each is not None]
    said_state = text(verdict.get("state"))
    state = said_state if said_state in STATES else UNKNOWN
    world_size = whole(said.get("world_size"))
    lost = numbers(verdict.get("gpus_lost"))
    if state == states.HUNG:
        lost = {"hung": float(world_size or len(ranks))}
    changes = map(read_change, objects(verdict.get("changes")))
    together = map(read_together, objects(verdict.get("together")))
    return JobStatus(
        job_id=job_id,
        state=state,
        sentence=text(verdict.get("sentence")) or "",
        details=texts(verdict.get("details")),
        first_action=text(verdict.get("first_action")),
        world_size=world_size,
        gpus_lost=sum(lost.values()) if lost else None,
        lost_by_kind=lost,
        late=late,
        culprit=_culprit(state, late, ranks),
        since_seconds=_since(state, late, ranks),
        slowdown=number(verdict.get("slowdown")),
        changes=[each for each in changes if each is not None],
        together=[each for each in together if each is not None],
        steps=whole(said.get("steps")),
        step_seconds=number(said.get("step_seconds")),
        coverage=number(verdict.get("coverage")),
        reason=text(verdict.get("reason")),
        alert=text(verdict.get("alert")),
        ranks=ranks,
    )


def _culprit(state: str, late: Sequence[LateView], ranks: Sequence[Rank]) -> tuple[int, str] | None:
    if state == states.HUNG:
        holding = next((rank for rank in ranks if holds_up(rank, state)), None)
        if holding is None:
            return None
        return holding.rank, FROZEN if holding.silent else holding.stage or UNKNOWN
    called_late = [each for each in late if each.is_called_late]
    return (called_late[0].rank, called_late[0].stage) if called_late else None


def _since(state: str, late: Sequence[LateView], ranks: Sequence[Rank]) -> float | None:
    if state == states.HUNG:
        ages = [rank.last_step_age_seconds for rank in ranks]
        return min((age for age in ages if age is not None), default=None)
    called_late = [each for each in late if each.is_called_late]
    return called_late[0].late_for_seconds if called_late else None


def _rank(said: Mapping[str, Any], node: str) -> Rank | None:
    rank = whole(said.get("rank"))
    if rank is None:
        return None
    stage = label(said.get("stage"))
    return Rank(
        rank=rank,
        node=text(said.get("host")) or node,
        local_rank=label(said.get("local_rank")),
        gpu=label(said.get("gpu")),
        gpu_uuid=label(said.get("gpu_uuid")),
        pid=whole(said.get("pid")),
        stage_seconds=numbers(said.get("stage_seconds")) or None,
        stage=stage,
        stage_elapsed_seconds=number(said.get("stage_elapsed_seconds")),
        # A rank without the probe is in no stage, and reports nothing.
        report_age_seconds=number(said.get("heartbeat_age_seconds")) if stage else None,
        last_step_age_seconds=number(said.get("last_step_age_seconds")),
        silent=said.get("silent") is True,
        finished=said.get("finished") is True,
    )
