"""The parts of a report in words, for a terminal and for Markdown alike."""

import time
from collections.abc import Iterator
from typing import Final

from exporter.diagnose.loss import hundredths
from exporter.diagnose.model import BALANCED, CANNOT_TELL, Finding, Part, Report
from exporter.live.sentences import duration, is_slower
from exporter.top.model import STATE_WORDS
from exporter.vocabulary.words import cause_in_short

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
    where = [(place.node if place.is_named else place.instance) or ""]
    where += [f"GPU {place.gpu}"] if place.gpu is not None else []
    where += [place.gpu_uuid] if place.gpu_uuid else []
    where += [f"PID {place.pid}"] if place.pid is not None else []
    if any(where):
        yield "Where", ", ".join(each for each in where if each)
    if finding.since_seconds is not None:
        yield "Since", _since(finding, at_seconds)
    if finding.gpus_lost is not None:
        yield "Cost", _cost(finding)
    if finding.stage is not None:
        yield "Stage", finding.stage
    for line in finding.lines[:MOST_LINES]:
        yield "Code", f"{line.share:.0%} of its time in {line.stage} is in {line.place}"
    if finding.cause is not None:
        yield "Cause", _cause(finding)
    for fact in finding.facts:
        yield "Fact", fact
    for other in finding.others:
        yield "Or perhaps", other
    if finding.first:
        yield "First", finding.first


def _since(finding: Finding, at_seconds: float | None) -> str:
    since = finding.since_seconds or 0.0
    until = finding.until_seconds
    if at_seconds is None:
        end = f" until {duration(until)} before it" if until else ""
        return f"{duration(since)} before the end{end}"
    end = f" until {duration(until)} ago" if until else ""
    return f"{duration(since)} ({clock(at_seconds - since)} UTC){end}"


def _cost(finding: Finding) -> str:
    said = f"{finding.gpus_lost:.2f} GPUs"
    if finding.ratio is not None:
        said += f"; its own time is {finding.ratio:.1%} longer than its peers'"
    return said


def _cause(finding: Finding) -> str:
    share = f" ({finding.explains:.0%} of the delay)" if finding.explains else ""
    name = cause_in_short(finding.cause or "", finding.detail or "")
    return f"{name}: {finding.cause_text}{share}."
