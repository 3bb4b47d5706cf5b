"""The report on a job as the exporters of its nodes see it, from each one's live summary."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from exporter.advice import advice, situations
from exporter.client.access import ANYONE, Access
from exporter.client.fetch import Trouble
from exporter.client.fields import number, objects, text, whole
from exporter.diagnose import by_stage
from exporter.diagnose.advise import advised
from exporter.diagnose.confidence import Suspect, confidence
from exporter.diagnose.live_gpus import Gpus, gpu_suspects, lost_gpus
from exporter.diagnose.loss import loss
from exporter.diagnose.losses import loss_findings
from exporter.diagnose.model import CannotTell, Event, Figure, Finding, Place, Report, ordered
from exporter.live import states
from exporter.live.sentences import LateView, LineView, change_sentence, late_sentence
from exporter.top.from_exporter import Seen, ask_all, merged, read_document
from exporter.top.model import NO_RANK, Job, Rank, no_such_job
from exporter.top.ranks import holds_up
from rank_probe.verdict import MILD, NODE

NO_HISTORY: Final = (
    "An exporter knows its own node, and nothing of earlier: a Prometheus with the rules has "
    "causes with more evidence, costs, and alerts."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The jobs that one exporter sees, and its whole *document*."""

    seen: list[Seen]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """A *job*, and what the documents say of it besides: *said* by each node."""

    job: Job
    said: Sequence[Mapping[str, Any]]
    gpus: Gpus

    def group(self, rank: int) -> str | None:
        """Return the peer group of a rank that one of the exporters sees."""
        for each in self.said:
            for one in objects(each.get("ranks")):
                if whole(one.get("rank")) == rank:
                    return text(one.get("peer_group"))
        return None


def read_exporters(urls: Sequence[str], job_id: str | None, access: Access = ANYONE) -> Report:
    """Return the report that the exporters at *urls* allow; raises Trouble and CannotTell."""
    answers = ask_all(urls, _read, access)
    troubles = [each for each in answers if isinstance(each, Trouble)]
    found = [each for each in answers if not isinstance(each, Trouble)]
    if not found:
        raise troubles[0]
    jobs = merged(seen for each in found for seen in each.seen)
    job = _one(jobs, job_id)
    said = [
        one
        for each in found
        for one in objects(each.document.get("jobs"))
        if one.get("job_id") == job.job_id
    ]
    gpus = Gpus([one for each in found for one in objects(each.document.get("gpus"))])
    at = max((each.at for answer in found for each in answer.seen), default=None)
    report = _report(Known(job, said, gpus), ", ".join(urls), at)
    return replace(report, unjudged=(*report.unjudged, *map(str, troubles)))


def _read(document: Any, url: str) -> Answer:
    return Answer(read_document(document, url), document)


def _one(jobs: Sequence[Job], job_id: str | None) -> Job:
    if not jobs:
        raise CannotTell(NO_RANK)
    chosen = [job for job in jobs if job_id in (None, job.job_id)]
    if not chosen:
        raise CannotTell(no_such_job(job_id or "", jobs))
    if len(chosen) > 1:
        names = ", ".join(sorted(job.job_id for job in jobs))
        raise CannotTell(f"There are {len(jobs)} jobs; name one with --job: {names}.")
    return chosen[0]


def _report(known: Known, source: str, at: float | None) -> Report:
    job = known.job
    kinds = job.lost_by_kind
    if job.state == states.HUNG:
        kinds = {"hung": float(job.world_size or len(job.ranks))}
    late = [each for each in job.late if each.wakes]
    ranks = {each.rank: {each.stage: each.gpus_lost} for each in late if each.gpus_lost > 0}
    found = ordered([*_situations(known, kinds), *_late(known, late)])
    found += [*lost_gpus(known.gpus, job), *_slower(job)]
    return Report(
        source=source,
        job_id=job.job_id,
        state=job.state,
        sentence=job.sentence,
        at_seconds=at,
        world_size=job.world_size,
        loss=loss(kinds, ranks) if kinds else None,
        slowdown=job.slowdown,
        findings=tuple(advised(each, job.job_id) for each in found),
        more=tuple(_mild(job)),
        events=tuple(
            Event(each.late_for_seconds, f"Rank {each.rank} became slow in {each.stage}.")
            for each in late[:5]
        ),
        unjudged=(NO_HISTORY, *_coverage(job)) if found else tuple(_coverage(job)),
    )


# ---- Late ranks --------------------------------------------------------------------------------


def _late(known: Known, late: Sequence[LateView]) -> Iterator[Finding]:
    nodes: dict[str | None, list[LateView]] = defaultdict(list)
    for each in late:
        if each.kind == NODE:
            nodes[_place(known.job, each.rank).node].append(each)
    alone = [[each] for each in late if each.kind != NODE]
    for those in [*nodes.values(), *alone]:
        yield _finding(known, those, [each.rank for each in late])


def _finding(known: Known, those: Sequence[LateView], late: Sequence[int]) -> Finding:
    first = max(those, key=lambda each: each.gpus_lost)
    is_node = first.kind == NODE
    place = _place(known.job, first.rank)
    figures, suspects = gpu_suspects(known.gpus, place, first, is_node)
    suspects = [*suspects, *by_stage.suspects({first.stage: 1.0})]
    chosen = by_stage.chosen(suspects)
    sure, why = confidence(chosen, suspects)
    return Finding(
        what=chosen.cause,
        sentence=late_sentence(those, known.job.world_size or len(those)),
        rank=None if is_node else first.rank,
        ranks=tuple(sorted(each.rank for each in those)),
        peer_group=first.peer_group or None,
        place=Place(node=place.node) if is_node else place,
        stage=first.stage,
        kind=first.kind,
        ratio=fmean(each.ratio for each in those),
        gpus_lost=sum(each.gpus_lost for each in those),
        since_seconds=max(each.late_for_seconds for each in those),
        lines=tuple(_lines(known, first.rank)),
        cause=chosen.cause,
        cause_text=advice()[chosen.cause].text,
        detail=chosen.detail or None,
        confidence=sure,
        why=why,
        explains=chosen.share,
        others=tuple(_others(chosen, suspects)),
        figures=(*_stages(known, [each.rank for each in those], late), *figures),
    )


def _others(chosen: Suspect, suspects: Sequence[Suspect]) -> Iterator[str]:
    for each in suspects:
        if each.cause != chosen.cause:
            yield f"{advice()[each.cause].short}, which explains {each.share:.0%}"


def _stages(known: Known, mine: Sequence[int], late: Sequence[int]) -> tuple[Figure, ...]:
    means = {r.rank: dict(r.stage_seconds) for r in known.job.ranks if r.stage_seconds}
    own = next((means[rank] for rank in mine if rank in means), None)
    if own is None:
        return ()
    groups = {known.group(rank) for rank in mine}
    peers = [
        mean for rank, mean in means.items() if rank not in late and known.group(rank) in groups
    ]
    return by_stage.stage_figures(own, peers) if peers else ()


def _lines(known: Known, rank: int) -> Iterator[LineView]:
    for each in known.said:
        for one in objects(each.get("ranks")):
            if whole(one.get("rank")) == rank:
                for line in objects(one.get("late_lines")):
                    stage, place = text(line.get("stage")), text(line.get("place"))
                    share = number(line.get("share"))
                    if stage and place and share is not None:
                        yield LineView(stage, place, share)


def _place(job: Job, rank: int) -> Place:
    found = next((each for each in job.ranks if each.rank == rank), None)
    return Place() if found is None else _of(found)


def _of(rank: Rank) -> Place:
    return Place(node=rank.node, gpu=rank.gpu, gpu_uuid=rank.gpu_uuid, pid=rank.pid)


# ---- Everything else ---------------------------------------------------------------------------


def _situations(known: Known, kinds: Mapping[str, float]) -> Iterator[Finding]:
    job = known.job
    if job.state == states.HUNG:
        yield _hung(job)
    elif job.state == states.RANKS_MISSING:
        yield _missing(job)
    elif job.state == states.STARTING and job.alert:
        place = _of(job.ranks[0]) if job.ranks else Place()
        yield Finding("slow_start", job.sentence, place=place)
    elif job.state in (states.STARTING, states.FINISHED, states.NO_PROBE):
        yield Finding(job.state, job.sentence)
    elif job.state == states.NOT_JUDGEABLE:
        reason = job.reason or ""
        yield Finding(reason if reason in situations() else "no_join", job.sentence)
    elif job.state != states.HUNG:
        yield from loss_findings(kinds, {}, float(job.world_size or len(job.ranks) or 1))


def _hung(job: Job) -> Finding:
    lost, since = float(job.world_size or 0), job.since_seconds
    holding = [rank for rank in job.ranks if holds_up(rank, job.state)]
    if not holding:
        return Finding("hung_together", job.sentence, gpus_lost=lost, since_seconds=since)
    rank = holding[0]
    return Finding(
        "hung",
        job.sentence,
        rank=rank.rank,
        ranks=tuple(each.rank for each in holding),
        place=_of(rank),
        stage="frozen" if rank.silent else rank.stage,
        gpus_lost=lost,
        since_seconds=since,
    )


def _missing(job: Job) -> Finding:
    silent = [rank for rank in job.ranks if rank.silent]
    if not silent:
        return Finding("ranks_missing", job.sentence)
    return Finding(
        "ranks_silent",
        job.sentence,
        rank=silent[0].rank,
        ranks=tuple(each.rank for each in silent),
        place=_of(silent[0]),
        since_seconds=silent[0].report_age_seconds,
    )


def _slower(job: Job) -> Iterator[Finding]:
    for change in job.changes:
        yield Finding("slower", change_sentence(change))


def _mild(job: Job) -> Iterator[str]:
    for late in [each for each in job.late if not each.wakes][:3]:
        why = "too little for an alert" if late.kind == MILD else "but no wait was measured"
        yield f"Rank {late.rank} needs {late.ratio:.1%} more time than its peers, {why}."


def _coverage(job: Job) -> Iterator[str]:
    if job.coverage is not None and job.coverage < 0.995:
        yield f"Only {job.coverage:.0%} of the job's ranks and steps are judged."
    if job.reason is not None and job.reason in situations():
        yield f"Not judgeable ({job.reason}): {situations()[job.reason].text}."
