"""The report on a job as the exporters of its nodes see it, from each one's live summary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from exporter.live import states
from exporter.live.causes import LineView
from rank_probe.judge.verdict import Change
from rankskew.client.access import ANYONE, Access
from rankskew.client.fetch import Trouble
from rankskew.client.fields import mapping, number, objects, text, whole
from rankskew.diagnose.late import late_events
from rankskew.diagnose.model import CannotTell, Finding, JobFacts, Place, Report
from rankskew.diagnose.report import all_findings, report
from rankskew.diagnose.situations import WhyOnNode, slower
from rankskew.top.from_exporter import JobOnNode, ask_all, merged, read_document
from rankskew.top.model import NO_RANK, JobStatus, no_such_job, several_jobs

NO_HISTORY: Final = (
    "An exporter knows its own node, and nothing of earlier: a Prometheus with the rules has the "
    "past, costs, and alerts."
)

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The jobs that one exporter sees, and its whole *document*."""

    seen: list[JobOnNode]
    document: Document


def read_exporters(urls: Sequence[str], job_id: str | None, access: Access = ANYONE) -> Report:
    """Return the report that the exporters at *urls* allow; raises Trouble and CannotTell."""
    answers = ask_all(urls, lambda said, url: Answer(read_document(said, url), said), access)
    troubles = [each for each in answers if isinstance(each, Trouble)]
    found = [each for each in answers if not isinstance(each, Trouble)]
    if not found:
        raise troubles[0]
    job = _one(merged(seen for each in found for seen in each.seen), job_id)
    facts = _job_facts(job, [each.document for each in found])
    findings, more = all_findings(facts)
    findings += _lost_gpus(facts, [each.document for each in found])
    documents = [each.document for each in found]
    findings += [slower(each, why=_why(each, job.job_id, documents)) for each in job.changes]
    at = max((each.at for answer in found for each in answer.seen), default=None)
    told = report(facts, ", ".join(urls), at, findings, more, late_events(job))
    history = (NO_HISTORY,) if findings else ()
    return replace(told, unjudged=(*history, *told.unjudged, *map(str, troubles)))


def _one(jobs: Sequence[JobStatus], job_id: str | None) -> JobStatus:
    if not jobs:
        raise CannotTell(NO_RANK)
    chosen = [job for job in jobs if job_id in (None, job.job_id)]
    if not chosen:
        raise CannotTell(no_such_job(job_id or "", jobs))
    if len(chosen) > 1:
        raise CannotTell(several_jobs(sorted(job.job_id for job in jobs)))
    return chosen[0]


def _job_facts(job: JobStatus, documents: Sequence[Document]) -> JobFacts:
    said = [
        each
        for document in documents
        for each in objects(document.get("jobs"))
        if each.get("job_id") == job.job_id
    ]
    judges = {text(mapping(each.get("verdict")).get("judge")) for each in said}
    called_late = [each for each in job.late if each.is_called_late and each.gpus_lost > 0]
    return JobFacts(
        job,
        places={
            rank.rank: Place(rank.node, gpu=rank.gpu, gpu_uuid=rank.gpu_uuid, pid=rank.pid)
            for rank in job.ranks
        },
        lines=dict(_lines(said)),
        late_gpus={
            each.rank: each.gpus_by_stage or {each.stage: each.gpus_lost} for each in called_late
        },
        silent={rank.rank: rank.report_age_seconds or 0.0 for rank in job.ranks if rank.silent},
        reasons=() if job.reason is None or job.state == states.STARTING else (job.reason,),
        judge="node" if judges == {"node"} else None,
    )


def _why(change: Change, job_id: str, documents: Sequence[Document]) -> list[WhyOnNode]:
    """Return the cause that the exporter of each node tells of *change*."""
    found = []
    for document in documents:
        for job in objects(document.get("jobs")):
            verdict = mapping(job.get("verdict"))
            causes = verdict.get("change_causes")
            if job.get("job_id") != job_id or not isinstance(causes, list):
                continue
            # As many as changes, null where the node cannot tell.
            for told, cause in zip(objects(verdict.get("changes")), causes, strict=False):
                is_this = (told.get("peer_group"), told.get("stage")) == (
                    change.peer_group,
                    change.stage,
                )
                known = mapping(cause)
                name, sentence = text(known.get("cause")), text(known.get("sentence"))
                if is_this and name and sentence:
                    detail = text(known.get("detail")) or ""
                    node = text(document.get("host")) or "a node"
                    found.append(WhyOnNode(node, (name, detail), sentence))
    return found


def _lines(said: Sequence[Document]) -> Iterator[tuple[int, list[LineView]]]:
    for one in (rank for each in said for rank in objects(each.get("ranks"))):
        rank = whole(one.get("rank"))
        found = [_line(each) for each in objects(one.get("late_lines"))]
        if rank is not None:
            yield rank, [line for line in found if line is not None]


def _line(said: Document) -> LineView | None:
    stage, place = text(said.get("stage")), text(said.get("place"))
    share = number(said.get("share"))
    return LineView(stage, place, share) if stage and place and share is not None else None


def _lost_gpus(facts: JobFacts, documents: Sequence[Document]) -> Iterator[Finding]:
    """Yield a finding for each GPU of the job that does not answer."""
    for gpu in (each for document in documents for each in objects(document.get("gpus"))):
        ranks = [
            rank
            for each in objects(gpu.get("ranks"))
            if each.get("job_id") == facts.job.job_id
            and (rank := whole(each.get("rank"))) is not None
        ]
        if gpu.get("up") is False and ranks:
            place = facts.place(ranks[0])
            yield Finding(
                "gpu_lost",
                f"The GPU of rank {ranks[0]} on {place.node or 'its node'} does not answer.",
                rank=ranks[0],
                ranks=tuple(ranks),
                place=place,
            )
