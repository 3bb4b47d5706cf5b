"""Why ranks are late, as their exporters tell it: in JSON, and as series of a Prometheus."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from exporter.causes.model import UNKNOWN, Guess
from exporter.causes.units import unit_of
from exporter.live.causes import CauseView, cause_sentence
from exporter.live.sentences import LateView
from exporter.live.states import HUNG
from exporter.vocabulary.words import cause_in_short
from rank_probe.judge.verdict import NODE
from rankskew.client.fields import mapping, number, objects, text
from rankskew.client.prometheus import Prometheus, Sample, Series
from rankskew.top.model import JobStatus

# A late rank has one of the first two, and a figure of its own and one of its peers, or none.
INFO: Final = "rankskew_late_cause_info"
SHARE: Final = "rankskew_late_cause_share_ratio"
FIGURE: Final = "rankskew_late_cause_figure"
SERIES: Final = "rankskew_late_cause_(info|share_ratio|figure)"
# As long as an alert keeps its cause, see late.yaml; a scrape may be missed.
BACK_SECONDS: Final = 60.0
STEP_SECONDS: Final = 5.0


def from_json(said: Any) -> CauseView | None:
    """Return the cause of an entry of a verdict's late ranks, None if there is none yet."""
    fields = mapping(said)
    cause = text(fields.get("cause"))
    if not cause:
        return None
    figure = text(fields.get("figure")) or ""
    return CauseView(
        cause=cause,
        detail=text(fields.get("detail")) or "",
        share=number(fields.get("share")) or 0.0,
        sentence=text(fields.get("sentence")) or "",
        first_action=text(fields.get("first_action")) or "",
        figure=figure,
        value=number(fields.get("value")),
        peers_value=number(fields.get("peers_value")),
        unit=unit_of(figure),
        others=list(map(_guess, objects(fields.get("others")))),
    )


def _guess(said: Mapping[str, Any]) -> Guess:
    return Guess(
        cause=text(said.get("cause")) or "",
        detail=text(said.get("detail")) or "",
        share=number(said.get("share")) or 0.0,
        sentence=text(said.get("sentence")) or "",
    )


def from_series(samples: Mapping[str, Sequence[Sample]]) -> dict[str, CauseView]:
    """Return the causes in the *samples* of a job, by rank."""
    shares = {each["rank"]: each.value for each in samples.get(SHARE, ())}
    figures = {(each["rank"], each["of"]): each.value for each in samples.get(FIGURE, ())}
    return {
        each["rank"]: CauseView(
            cause=each["cause"],
            detail=each["detail"],
            share=shares.get(each["rank"], 0.0),
            sentence=each["sentence"],
            first_action=each["first_action"],
            figure=each["figure"],
            value=figures.get((each["rank"], "rank")),
            peers_value=figures.get((each["rank"], "peers")),
            unit=unit_of(each["figure"]),
            others=[],
        )
        for each in samples.get(INFO, ())
    }


def of_last_minute(prometheus: Prometheus, expression: str) -> list[Sample]:
    """Return of each rank in *expression* what was there last, within a minute; raises Trouble.

    So of two causes, the newer one.
    """
    now = prometheus.now
    found = prometheus.query_range(expression, now - BACK_SECONDS, now, STEP_SECONDS)
    ends = [(each, each.points[-1]) for each in found if each.points]
    last: dict[tuple[str, str, str], float] = {}
    for each, (at, _) in ends:
        last[who(each)] = max(at, last.get(who(each), at))
    return [
        Sample(each.name, each.labels, value) for each, (at, value) in ends if at == last[who(each)]
    ]


def who(each: Sample | Series) -> tuple[str, str, str]:
    """Return cluster, job and number of the rank that a series is about."""
    return each["cluster"], each["job_id"], each["rank"]


def told(cause: CauseView) -> str:
    """Return it in a sentence, with the share of the delay that it accounts for."""
    said = cause_sentence(cause).removesuffix(".")
    return f"{said}." if cause.cause == UNKNOWN else f"{said} ({cause.share:.0%} of the delay)."


def of_node(late: Sequence[LateView]) -> CauseView | None:
    """Return the cause that most of the *late* ranks of a node have, of these the costliest's.

    As the alert on a slow node names it, in late.yaml.
    """
    known = sorted((each for each in late if each.cause), key=lambda each: -each.gpus_lost)
    causes = [each.cause for each in known if each.cause is not None]
    often = Counter(each.cause for each in causes)
    return max(causes, key=lambda each: often[each.cause], default=None)


def explained(job: JobStatus) -> JobStatus:
    """Return *job* with the cause of its costliest late rank, and what to do about it first."""
    rank = None if job.culprit is None or job.state == HUNG else job.culprit[0]
    first = next((each for each in job.late if each.rank == rank), None)
    if first is None:
        return job
    those = [each for each in job.late if each.is_called_late and each.kind == NODE]
    cause = of_node(those) if first.kind == NODE else first.cause
    if cause is None:
        return job
    is_said = any(cause.sentence in said for said in job.details)
    return replace(
        job,
        cause=cause_in_short(cause.cause, cause.detail),
        details=job.details if is_said else (told(cause), *job.details),
        first_action=cause.first_action or job.first_action,
    )
