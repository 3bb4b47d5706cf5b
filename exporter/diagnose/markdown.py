"""The report as Markdown, for a ticket or a chat."""

from collections.abc import Iterator

from exporter.diagnose import words
from exporter.diagnose.model import Finding, Report
from exporter.live.sentences import duration


def as_markdown(report: Report) -> str:
    """Return *report* as Markdown."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"# {_plain(words.title(report))}"
    yield ""
    yield from (_plain(f"{words.opening(report)} {words.when(report)}".strip()), "")
    if report.outcome in words.OUTCOMES:
        yield words.OUTCOMES[report.outcome]
    if report.loss is not None:
        yield from ("", "## Loss", "", words.cost(report), "")
        for depth, name, gpus in words.loss_lines(report):
            yield f"{'  ' * depth}- {gpus:.2f} {_plain(name)}"
    for number, finding in enumerate(report.findings, 1):
        yield from ("", f"## {number}. {_plain(finding.sentence)}", "")
        yield from _finding(finding, report.at_seconds)
    sections = {
        "Also": list(report.more),
        "What began, the latest first": [
            f"{duration(each.since_seconds)} ago: {each.sentence}" for each in report.events
        ],
        "Not judged": list(report.unjudged),
    }
    for name, texts in sections.items():
        if texts:
            yield from ("", f"## {name}", "", *(f"- {_plain(text)}" for text in texts))


def _finding(finding: Finding, at_seconds: float | None) -> Iterator[str]:
    for label, text in words.rows(finding, at_seconds):
        yield f"- **{label}:** {_plain(text)}"
    if finding.steps:
        yield from ("", "What to do, the least disturbing first:", "")
    for place, step in enumerate(finding.steps, 1):
        yield f"{place}. {_plain(step.do)} ({words.DISTURBS[step.disturbs]})"
    if finding.proof:
        yield from ("", f"Proof: {_plain(finding.proof)}")
    if finding.links:
        yield from ("", "More: " + " ".join(f"<{link}>" for link in finding.links))


def _plain(text: str) -> str:
    """Return *text* in which no name can be HTML, or a heading of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
