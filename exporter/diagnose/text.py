"""The report as text for a terminal of a hundred columns."""

import textwrap
from collections.abc import Iterator
from typing import Final

from exporter.diagnose import words
from exporter.diagnose.model import Event, Finding, Report
from exporter.live.sentences import duration

COLUMNS: Final = 100
LABEL: Final = 12


def as_text(report: Report) -> str:
    """Return *report* for a person at a terminal."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield from _wrapped(f"{words.title(report)}. {words.opening(report)}".strip())
    yield from _wrapped(words.when(report))
    if report.outcome in words.OUTCOMES:
        yield from _wrapped(words.OUTCOMES[report.outcome])
    if report.loss is not None:
        yield ""
        yield from _wrapped(words.cost(report))
        for depth, name, gpus in words.loss_lines(report):
            yield f"{gpus:9.2f}  {'  ' * depth}{name}"
    for number, finding in enumerate(report.findings, 1):
        yield ""
        yield from _finding(number, finding, report.at_seconds)
    yield from _section("Also", report.more)
    yield from _section(
        "What began, the latest first", [_event(each, report) for each in report.events]
    )
    yield from _section("Not judged", report.unjudged)


def _finding(number: int, finding: Finding, at_seconds: float | None) -> Iterator[str]:
    head = f"{number}. "
    yield from _wrapped(finding.sentence, head, " " * len(head))
    last = ""
    for label, text in words.rows(finding, at_seconds):
        yield from _row(label if label != last else "", text)
        last = label
    if finding.steps:
        yield "   What to do, the least disturbing first:"
    for place, step in enumerate(finding.steps, 1):
        said = f"{step.do} [{words.DISTURBS[step.disturbs]}]"
        yield from _wrapped(said, f"   {place:3}. ", " " * 8)
    if finding.proof:
        yield from _row("Proof", finding.proof)
    for place, link in enumerate(finding.links):
        yield from _row("" if place else "More", link)


def _event(event: Event, report: Report) -> str:
    ago = duration(event.since_seconds)
    if report.at_seconds is None:
        return f"{ago} before the end: {event.sentence}"
    return (
        f"{words.clock(report.at_seconds - event.since_seconds)} UTC, {ago} ago: {event.sentence}"
    )


def _section(name: str, texts: "list[str] | tuple[str, ...]") -> Iterator[str]:
    if texts:
        yield ""
        yield f"{name}:"
        for text in texts:
            yield from _wrapped(text, "   ", "   ")


def _row(label: str, text: str) -> Iterator[str]:
    yield from _wrapped(text, f"   {label:<{LABEL}}", " " * (LABEL + 3))


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
