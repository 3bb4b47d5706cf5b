"""A report as a document for people, and as JSON for programs."""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from exporter.causes.model import UNKNOWN
from exporter.live.causes import CauseView
from exporter.live.sentences import is_slower
from exporter.live.wording import duration
from exporter.vocabulary.words import cause_in_short
from rank_probe.wire.document import as_document
from rankskew.diagnose.findings import SMALLEST_GPUS
from rankskew.diagnose.model import (
    BALANCED,
    CANNOT_TELL,
    EXIT_STATUS,
    Finding,
    Part,
    Report,
)
from rankskew.render import Document, Section
from rankskew.top.model import STATE_WORDS

MOST_LINES: Final = 3
OUTCOMES: Final = {
    BALANCED: "Balanced: nothing is wrong that was measured.",
    CANNOT_TELL: "Cannot tell whether the ranks keep up.",
}
DISTURBS: Final = {
    "nothing": "disturbs nothing",
    "neighbour": "disturbs its neighbours",
    "rank": "disturbs the rank",
    "restart": "needs a restart",
    "node": "takes the node out",
}


def as_json(report: Report) -> str:
    """Return *report* as a JSON object; docs/diagnose.md describes it."""
    outcome = {"outcome": report.outcome, "exit_status": EXIT_STATUS[report.outcome]}
    return as_document("diagnose", outcome | asdict(report))


def clock(seconds: float, form: str = "%H:%M") -> str:
    """Return a Unix time as UTC."""
    return time.strftime(form, time.gmtime(seconds))


def in_words(report: Report) -> Document:
    """Return *report* for people."""
    state = STATE_WORDS.get(report.state, report.state)
    cluster = f"{report.cluster}/" if report.cluster else ""
    is_said = report.sentence in {finding.sentence for finding in report.findings}
    opening = [
        "" if is_said else report.sentence,
        f"From {report.source}, {clock(report.at_seconds, '%Y-%m-%d %H:%M:%S')} UTC.",
        OUTCOMES.get(report.outcome, ""),
    ]
    lists = {
        "Also": report.more,
        "What began, the latest first": [
            f"{clock(report.at_seconds - each.since_seconds)} UTC, "
            f"{duration(each.since_seconds)} ago: {each.sentence}"
            for each in report.events
        ],
        "Not judged": report.unjudged,
    }
    return Document(
        f"{cluster}{report.job_id}: {state.lower()}",
        [line for line in opening if line],
        [
            *([] if report.loss is None else [loss_section(_cost(report), report.loss)]),
            *(
                Section(
                    f"{number}. {finding.sentence}",
                    facts=list(facts(finding, report.at_seconds)),
                )
                for number, finding in enumerate(report.findings, 1)
            ),
            *(Section(title, lines) for title, lines in lists.items() if lines),
        ],
    )


def _cost(report: Report) -> str:
    """Return the whole loss in a sentence: in GPUs, money and time."""
    lost = 0.0 if report.loss is None else report.loss.gpus
    size = "" if report.world_size is None else f" of {report.world_size}"
    said = f"{lost:.2f}{size} GPUs do nothing but wait"
    if report.cost_per_hour is not None:
        said += f", ${report.cost_per_hour:,.2f} an hour"
    if is_slower(report.slowdown):
        said += f"; steps take {report.slowdown:.2f} times as long as without the late ranks"
    return f"{said}."


def loss_section(title: str, whole: Part) -> Section:
    """Return the parts of *whole* as a table; those that are next to nothing have no row."""
    return Section(title, names=(">GPUs", "Lost"), rows=list(_rows(whole)))


def _rows(part: Part, indent: str = "") -> Iterator[tuple[str, str]]:
    for each in part.parts:
        if each.gpus >= SMALLEST_GPUS:
            yield f"{each.gpus:.2f}", f"{indent}{each.name}"
            yield from _rows(each, f"{indent}  ")


def facts(finding: Finding, at_seconds: float) -> Iterator[tuple[str, str]]:
    """Yield what is known of *finding* and what to do, as a label and a text each."""
    place = finding.place
    where = [
        place.node,
        None if place.gpu is None else f"GPU {place.gpu}",
        place.gpu_uuid,
        None if place.pid is None else f"PID {place.pid}",
    ]
    if any(where):
        yield "Where", ", ".join(each for each in where if each)
    if finding.since_seconds is not None:
        began = clock(at_seconds - finding.since_seconds)
        yield "Since", f"{duration(finding.since_seconds)} ({began} UTC)"
    if finding.gpus_lost is not None:
        longer = finding.ratio is not None
        more = f"; its own time is {finding.ratio:.1%} longer than its peers'" if longer else ""
        yield "Cost", f"{finding.gpus_lost:.2f} GPUs{more}"
    if finding.stage is not None:
        yield "Stage", finding.stage
    for line in finding.lines[:MOST_LINES]:
        yield "Code", f"{line.share:.0%} of its time in {line.stage} is in {line.place}"
    if finding.cause is not None:
        yield "Cause", _cause(finding.cause)
    yield from (("Fact", fact) for fact in finding.facts)
    for guess in finding.cause.others if finding.cause is not None else ():
        yield "Or perhaps", f"{guess.sentence} ({guess.share:.0%})"
    if finding.first:
        yield "First", finding.first
    # The least disturbing first.
    for number, step in enumerate(finding.steps, 1):
        yield "To do", f"{number}. {step.do} ({DISTURBS[step.disturbs]})"
    if finding.proof:
        yield "Proof", finding.proof
    yield from (("More", link) for link in finding.links)


def _cause(cause: CauseView) -> str:
    share = "" if cause.cause == UNKNOWN else f" ({cause.share:.0%} of the delay)"
    name = cause_in_short(cause.cause, cause.detail)
    return f"{name}: {cause.sentence.removesuffix('.')}{share}."
