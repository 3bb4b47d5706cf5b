"""The parts of a report in words, for a terminal and for Markdown alike."""

import time
from collections.abc import Iterator
from typing import Final

from exporter.live.sentences import is_slower
from exporter.live.wording import duration
from exporter.vocabulary.words import cause_in_short
from rankskew.diagnose.loss import hundredths
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, Event, Finding, Part, Report
from rankskew.top.model import STATE_WORDS

MOST_LINES: Final = 3
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


def title(report: Report) -> str:
    """Return the job, its state, and when that was."""
    state = STATE_WORDS.get(report.state, report.state)
    cluster = f"{report.cluster}/" if report.cluster else ""
    return f"{cluster}{report.job_id}: {state.lower()}"


def opening(report: Report) -> str:
    """Return what the state means, unless a finding says it word for word."""
    said = {finding.sentence for finding in report.findings}
    return "" if report.sentence in said else report.sentence


def when(report: Report) -> str:
    """Return where the report comes from, and the time that it is about."""
    source = f"From {report.source}"
    if report.at_seconds is None:
        return f"{source}."
    at = f"{clock(report.at_seconds, '%Y-%m-%d %H:%M:%S')} UTC"
    if report.covers_seconds is None:
        return f"{source}, {at}."
    return f"{source}, the {duration(report.covers_seconds)} until {at}."


def clock(seconds: float, form: str = "%H:%M") -> str:
    """Return a Unix time as UTC."""
    return time.strftime(form, time.gmtime(seconds))


def cost(report: Report) -> str:
    """Return the whole loss in a sentence: in GPUs, money and time."""
    if report.loss is None:
        return "The loss is not known."
    size = "" if report.world_size is None else f" of {report.world_size}"
    said = f"{hundredths(report.loss).gpus:.2f}{size} GPUs do nothing but wait"
    if report.cost_per_hour is not None:
        said += f", ${report.cost_per_hour:,.2f} an hour"
    if is_slower(report.slowdown):
        said += f"; steps take {report.slowdown:.2f} times as long as without the late ranks"
    return f"{said}."


def loss_lines(report: Report) -> Iterator[tuple[int, str, float]]:
    """Yield depth, name and GPUs of each part of the loss, rounded so that they add up."""
    if report.loss is not None:
        yield from _parts(hundredths(report.loss), 0)


def _parts(part: Part, depth: int) -> Iterator[tuple[int, str, float]]:
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
        yield "Since", _since(finding, at_seconds)
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


def sections(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield the lists at the end, each with its heading; none that is empty."""
    began = [f"{_ago(each, report.at_seconds)}: {each.sentence}" for each in report.events]
    lists = {
        "Also": list(report.more),
        "What began, the latest first": began,
        "Not judged": list(report.unjudged),
    }
    yield from ((name, texts) for name, texts in lists.items() if texts)


def _ago(event: Event, at_seconds: float | None) -> str:
    ago = duration(event.since_seconds)
    if at_seconds is None:
        return f"{ago} before the end"
    return f"{clock(at_seconds - event.since_seconds)} UTC, {ago} ago"


def _since(finding: Finding, at_seconds: float | None) -> str:
    since, until = finding.since_seconds or 0.0, finding.until_seconds
    if at_seconds is None:
        end = f" until {duration(until)} before it" if until else ""
        return f"{duration(since)} before the end{end}"
    end = f" until {duration(until)} ago" if until else ""
    return f"{duration(since)} ({clock(at_seconds - since)} UTC){end}"
