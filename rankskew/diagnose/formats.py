"""A report as text for a terminal, as Markdown for a ticket, and as JSON for programs."""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from rank_probe.wire.document import as_document
from rankskew.diagnose import words
from rankskew.diagnose.model import EXIT_STATUS, Finding, Report

COLUMNS: Final = 100
LABEL: Final = 12
TO_DO: Final = "What to do, the least disturbing first:"


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


# ---- Text --------------------------------------------------------------------------------------


def as_text(report: Report) -> str:
    """Return *report* for a person at a terminal of a hundred columns."""
    return "\n".join(_text(report))


def _text(report: Report) -> Iterator[str]:
    yield from _wrapped(f"{words.title(report)}. {words.opening(report)}".strip())
    yield from _wrapped(words.when(report))
    yield from _wrapped(words.OUTCOMES.get(report.outcome, ""))
    if report.loss is not None:
        yield from ("", *_wrapped(words.cost(report)))
        for depth, name, gpus in words.loss_lines(report):
            yield f"{gpus:9.2f}  {'  ' * depth}{name}"
    for number, finding in enumerate(report.findings, 1):
        yield from ("", *_wrapped(f"{number}. {finding.sentence}", rest="   "))
        yield from _text_of(finding, report.at_seconds)
    for name, texts in words.sections(report):
        yield from ("", f"{name}:")
        for said in texts:
            yield from _wrapped(said, "   ", "   ")


def _text_of(finding: Finding, at_seconds: float | None) -> Iterator[str]:
    yield from _rows(words.rows(finding, at_seconds))
    if finding.steps:
        yield f"   {TO_DO}"
    for place, step in enumerate(finding.steps, 1):
        said = f"{step.do} [{words.DISTURBS[step.disturbs]}]"
        yield from _wrapped(said, f"   {place:3}. ", " " * 8)
    yield from _rows(("Proof", proof) for proof in [finding.proof] if proof)
    yield from _rows(("More", link) for link in finding.links)


def _rows(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yield *rows* of a label and a text; a label that is that of the row above is left out."""
    last = ""
    for label, said in rows:
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


# ---- Markdown ----------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """Return *report* for a ticket or a chat."""
    return "\n".join(_markdown(report))


def _markdown(report: Report) -> Iterator[str]:
    yield from (f"# {_plain(words.title(report))}", "")
    yield from (_plain(f"{words.opening(report)} {words.when(report)}".strip()), "")
    if report.outcome in words.OUTCOMES:
        yield words.OUTCOMES[report.outcome]
    if report.loss is not None:
        yield from ("", "## Loss", "", words.cost(report), "")
        for depth, name, gpus in words.loss_lines(report):
            yield f"{'  ' * depth}- {gpus:.2f} {_plain(name)}"
    for number, finding in enumerate(report.findings, 1):
        yield from ("", f"## {number}. {_plain(finding.sentence)}", "")
        yield from _markdown_of(finding, report.at_seconds)
    for name, texts in words.sections(report):
        yield from ("", f"## {name}", "", *(f"- {_plain(said)}" for said in texts))


def _markdown_of(finding: Finding, at_seconds: float | None) -> Iterator[str]:
    for label, said in words.rows(finding, at_seconds):
        yield f"- **{label}:** {_plain(said)}"
    if finding.steps:
        yield from ("", TO_DO, "")
    for place, step in enumerate(finding.steps, 1):
        yield f"{place}. {_plain(step.do)} ({words.DISTURBS[step.disturbs]})"
    if finding.proof:
        yield from ("", f"Proof: {_plain(finding.proof)}")
    if finding.links:
        yield from ("", "More: " + " ".join(f"<{link}>" for link in finding.links))


def _plain(said: str) -> str:
    """Return it so that no name in it can be HTML, or a heading of its own."""
    return said.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
