"""A report as text for a terminal, as Markdown for a ticket, and as JSON for programs."""

import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from exporter.live.sentences import is_slower
from exporter.live.wording import duration
from exporter.vocabulary.words import cause_in_short
from rank_probe.wire.document import as_document
from rankskew.diagnose.loss import hundredths
from rankskew.diagnose.model import (
    BALANCED,
    CANNOT_TELL,
    EXIT_STATUS,
    Event,
    Finding,
    Part,
    Report,
)
from rankskew.top.model import STATE_WORDS

COLUMNS: Final = 100
LABEL: Final = 12
MOST_LINES: Final = 3
TO_DO: Final = "What to do, the least disturbing first:"
OUTCOMES: Final = {
    BALANCED: "Balanced: nothing is wrong that was measured.",
    CANNOT_TELL: "It cannot be told whether the ranks keep up.",
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
    return as_document(
        "diagnose", outcome | asdict(report) | {"cost_per_hour": report.cost_per_hour}
    )


def trouble_as_json(sentence: str) -> str:
    """Return the document that says why there is no report."""
    return as_document(
        "diagnose", {"outcome": "cannot_tell", "exit_status": 2, "trouble": sentence}
    )


# ---- Text ----------------------------------------------------------------------------------------


def as_text(report: Report) -> str:
    """Return *report* for a person at a terminal of a hundred columns."""
    return "\n".join(_text(report))


def _text(report: Report) -> Iterator[str]:
    yield from _wrapped(f"{_title(report)}. {_opening(report)}".strip())
    yield from _wrapped(_when(report))
    yield from _wrapped(OUTCOMES.get(report.outcome, ""))
    if report.loss is not None:
        yield from ("", *_wrapped(_cost(report)))
        for depth, name, gpus in _parts(hundredths(report.loss)):
            yield f"{gpus:9.2f}  {'  ' * depth}{name}"
    for number, finding in enumerate(report.findings, 1):
        yield from ("", *_wrapped(f"{number}. {finding.sentence}", rest="   "))
        yield from _text_rows(rows(finding, report.at_seconds))
        if finding.steps:
            yield f"   {TO_DO}"
        for place, step in enumerate(finding.steps, 1):
            said = f"{step.do} [{DISTURBS[step.disturbs]}]"
            yield from _wrapped(said, f"   {place:3}. ", " " * 8)
        yield from _text_rows(("Proof", proof) for proof in [finding.proof] if proof)
        yield from _text_rows(("More", link) for link in finding.links)
    for name, texts in _sections(report):
        yield from ("", f"{name}:")
        for said in texts:
            yield from _wrapped(said, "   ", "   ")


def _text_rows(labelled: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield rows of a label and a text; a label that is that of the row above is left out."""
    last = ""
    for label, said in labelled:
        shown = label if label != last else ""
        yield from _wrapped(said, f"   {shown:<{LABEL}}", " " * (LABEL + 3))
        last = label


def _wrapped(said: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        said,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


# ---- Markdown ------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """Return *report* for a ticket or a chat."""
    return "\n".join(_markdown(report))


def _markdown(report: Report) -> Iterator[str]:
    yield from (f"# {_plain(_title(report))}", "")
    yield from (_plain(f"{_opening(report)} {_when(report)}".strip()), "")
    if report.outcome in OUTCOMES:
        yield OUTCOMES[report.outcome]
    if report.loss is not None:
        yield from ("", "## Loss", "", _cost(report), "")
        for depth, name, gpus in _parts(hundredths(report.loss)):
            yield f"{'  ' * depth}- {gpus:.2f} {_plain(name)}"
    for number, finding in enumerate(report.findings, 1):
        yield from ("", f"## {number}. {_plain(finding.sentence)}", "")
        for label, said in rows(finding, report.at_seconds):
            yield f"- **{label}:** {_plain(said)}"
        if finding.steps:
            yield from ("", TO_DO, "")
        for place, step in enumerate(finding.steps, 1):
            yield f"{place}. {_plain(step.do)} ({DISTURBS[step.disturbs]})"
        if finding.proof:
            yield from ("", f"Proof: {_plain(finding.proof)}")
        if finding.links:
            yield from ("", "More: " + " ".join(f"<{link}>" for link in finding.links))
    for name, texts in _sections(report):
        yield from ("", f"## {name}", "", *(f"- {_plain(said)}" for said in texts))


def _plain(said: str) -> str:
    """Return it so that no name in it can be HTML, or a heading of its own."""
    return said.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")


# ---- What both say -------------------------------------------------------------------------------


def clock(seconds: float, form: str = "%H:%M") -> str:
    """Return a Unix time as UTC."""
    return time.strftime(form, time.gmtime(seconds))


def _title(report: Report) -> str:
    state = STATE_WORDS.get(report.state, report.state)
    cluster = f"{report.cluster}/" if report.cluster else ""
    return f"{cluster}{report.job_id}: {state.lower()}"


def _opening(report: Report) -> str:
    """Return what the state means, unless a finding says it word for word."""
    said = {finding.sentence for finding in report.findings}
    return "" if report.sentence in said else report.sentence


def _when(report: Report) -> str:
    if report.at_seconds is None:
        return f"From {report.source}."
    return f"From {report.source}, {clock(report.at_seconds, '%Y-%m-%d %H:%M:%S')} UTC."


def _cost(report: Report) -> str:
    """Return the whole loss in a sentence: in GPUs, money and time."""
    lost = 0.0 if report.loss is None else hundredths(report.loss).gpus
    size = "" if report.world_size is None else f" of {report.world_size}"
    said = f"{lost:.2f}{size} GPUs do nothing but wait"
    if report.cost_per_hour is not None:
        said += f", ${report.cost_per_hour:,.2f} an hour"
    if is_slower(report.slowdown):
        said += f"; steps take {report.slowdown:.2f} times as long as without the late ranks"
    return f"{said}."


def _parts(part: Part, depth: int = 0) -> Iterator[tuple[int, str, float]]:
    """Yield depth, name and GPUs of each part of *part*."""
    for each in part.parts:
        yield depth, each.name, each.gpus
        yield from _parts(each, depth + 1)


def rows(finding: Finding, at_seconds: float | None) -> Iterator[tuple[str, str]]:
    """Yield what is known of *finding*, as a label and a text each; what is not known has none."""
    place = finding.place
    where = [
        place.shown,
        None if place.gpu is None else f"GPU {place.gpu}",
        place.gpu_uuid,
        None if place.pid is None else f"PID {place.pid}",
    ]
    if any(where):
        yield "Where", ", ".join(each for each in where if each)
    if finding.since_seconds is not None:
        yield "Since", _since(finding.since_seconds, finding.until_seconds, at_seconds)
    if finding.gpus_lost is not None:
        longer = finding.ratio is not None
        more = f"; its own time is {finding.ratio:.1%} longer than its peers'" if longer else ""
        yield "Cost", f"{finding.gpus_lost:.2f} GPUs{more}"
    if finding.stage is not None:
        yield "Stage", finding.stage
    for line in finding.lines[:MOST_LINES]:
        yield "Code", f"{line.share:.0%} of its time in {line.stage} is in {line.place}"
    if finding.cause is not None:
        share = f" ({finding.explains:.0%} of the delay)" if finding.explains else ""
        name = cause_in_short(finding.cause, finding.detail or "")
        yield "Cause", f"{name}: {finding.cause_text}{share}."
    yield from (("Fact", fact) for fact in finding.facts)
    yield from (("Or perhaps", other) for other in finding.others)
    if finding.first:
        yield "First", finding.first


def _since(since: float, until: float | None, at_seconds: float | None) -> str:
    if at_seconds is None:
        end = f" until {duration(until)} before it" if until else ""
        return f"{duration(since)} before the end{end}"
    end = f" until {duration(until)} ago" if until else ""
    return f"{duration(since)} ({clock(at_seconds - since)} UTC){end}"


def _sections(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield the lists at the end, each with its heading; none that is empty."""
    lists = {
        "Also": list(report.more),
        "What began, the latest first": [_event(each, report.at_seconds) for each in report.events],
        "Not judged": list(report.unjudged),
    }
    yield from ((name, texts) for name, texts in lists.items() if texts)


def _event(event: Event, at_seconds: float | None) -> str:
    ago = duration(event.since_seconds)
    if at_seconds is None:
        return f"{ago} before the end: {event.sentence}"
    return f"{clock(at_seconds - event.since_seconds)} UTC, {ago} ago: {event.sentence}"
