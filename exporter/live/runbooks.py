"""Runbooks and the playbook as web pages, with what the exporter knows filled in."""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from html import escape
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlencode

from exporter.bundle import bundled
from exporter.live.page import LiveSummary

# The placeholders of the runbooks, and where to read each if it is not filled in.
PLACEHOLDERS: Final = {
    "JOB": "the label job_id of the alert",
    "RANK": "the label rank of the alert",
    "NODE": "the node's name: the alert's label instance, without its port",
    "PID": 'the label pid of rankskew_rank_info{job_id="JOB",rank="RANK"}',
    "GPU": 'the label gpu of rankskew_gpu_rank_info{job_id="JOB",rank="RANK"}, or of the alert',
    "UUID": 'the label gpu_uuid of rankskew_gpu_rank_info{job_id="JOB",rank="RANK"}, or of the '
    "alert",
}
WORD: Final = re.compile(rf"\b({'|'.join(PLACEHOLDERS)})\b")
# A job names itself, and commands are copied from here into a shell: anything else stays out.
HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]*")
# What marks a generated part.
COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)
SOURCE: Final = "https://github.com/rankskew/rankskew/blob/main/"

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'self'; \
img-src 'self'; base-uri 'none'; form-action 'none'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" type="image/svg+xml" href="../static/icon.svg">
<link rel="stylesheet" href="../static/page.css">
<link rel="stylesheet" href="../static/runbook.css">
</head>
<body>
<header><p>rankskew</p>
<nav aria-label="Exporter"><a href="../">live page</a> <a href="./">all runbooks</a></nav></header>
<main>
{body}
</main>
</body>
</html>
"""


class Runbooks:
    """The bundled runbooks, and the playbook's pages on causes.

    They are read when they are asked for, because few ever are.
    """

    def __init__(self) -> None:
        self._runbooks = _pages("alerts/runbooks")
        self._causes = _pages("alerts/playbook")
        self._paths: Mapping[str, Path] = self._runbooks | self._causes

    def index(self) -> str:
        """Return the page that lists all of them."""
        body = _list("Runbooks", self._runbooks) + _list("Causes of a late rank", self._causes)
        return PAGE.format(title="Runbooks", body=body)

    def page(self, name: str, job_id: str, rank: str, live: LiveSummary) -> str | None:
        """Return runbook *name* as a page; None if there is none.

        *job_id* and *rank* are what the reader asks about; what *live* knows of them is filled in.
        """
        path = self._paths.get(name)
        if path is None:
            return None
        source = COMMENT.sub("", path.read_text(encoding="utf-8"))
        values = known(live, job_id, rank)
        query = urlencode({key: value for key, value in (("job", job_id), ("rank", rank)) if value})
        body = _render(source, values, query, self._paths.keys())
        notes = "\n".join(_notes(source, values))
        return PAGE.format(title=escape(name), body=f"{body}\n{notes}")


def _pages(name: str) -> dict[str, Path]:
    pages = sorted(bundled(name).glob("*.md"))
    return {path.stem: path for path in pages if path.stem != "README"}


def _list(title: str, names: Iterable[str]) -> str:
    rows = "\n".join(f'<li><a href="{name}">{name}</a></li>' for name in names)
    return f"<h1>{title}</h1>\n<ul>\n{rows}\n</ul>\n"


def known(live: LiveSummary, job_id: str, rank: str) -> dict[str, str]:
    """Return the values of the PLACEHOLDERS for *rank* of *job_id*, as far as they are known here.

    Only what this exporter has seen of them: the query may come from anyone's link.
    """
    job = next((each for each in live.jobs if each.job_id == job_id), None)
    if job is None:
        return {}
    found: dict[str, object] = {"JOB": job_id}
    if rank.isascii() and rank.isdigit() and len(rank) <= 9:
        found["RANK"] = int(rank)
        here = next((each for each in job.ranks if each.rank == int(rank)), None)
        if here is not None:
            found |= {"NODE": here.host, "PID": here.pid, "GPU": here.gpu, "UUID": here.gpu_uuid}
    values = {name: str(value) for name, value in found.items() if value is not None}
    return {name: value for name, value in values.items() if HARMLESS.fullmatch(value)}


def filled(code: str, values: Mapping[str, str]) -> str:
    """Return *code* with the placeholders that have values replaced by them."""
    return WORD.sub(lambda found: values.get(found[1], found[1]), code)


def _render(source: str, values: Mapping[str, str], query: str, names: Container[str]) -> str:
    # Imported here: most exporters never show a runbook, and it takes 1 MiB.
    from markdown_it import MarkdownIt

    # HTML in the source is shown as text; what is filled in is escaped like all other text.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(source)
    for token in [*tokens, *(child for each in tokens for child in each.children or ())]:
        if token.type in ("code_inline", "fence", "code_block"):
            token.content = filled(token.content, values)
        elif token.type == "link_open":
            token.attrSet("href", _address(str(token.attrGet("href")), query, names))
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _address(href: str, query: str, names: Container[str]) -> str:
    """Return where a link leads: to another page here, or to the documentation's source."""
    path, _, _ = href.partition("#")
    name = PurePosixPath(path).stem
    if name in names and path.endswith(".md"):
        return f"{name}?{query}" if query else name
    return SOURCE + href.removeprefix("../../") if href.startswith("../../") else href


def _notes(source: str, values: Mapping[str, str]) -> Iterator[str]:
    """Say what was filled in, and where to read what was not."""
    used = [name for name in PLACEHOLDERS if name in set(WORD.findall(_code(source)))]
    if here := [name for name in used if name in values]:
        what = ", ".join(f"{name} is {escape(values[name])}" for name in here)
        yield f'<p class="faint">Filled in from what this exporter knows: {what}.</p>'
    if missing := [name for name in used if name not in values]:
        rows = "".join(
            f"<dt><code>{name}</code></dt><dd>{escape(PLACEHOLDERS[name])}</dd>" for name in missing
        )
        yield f'<h2>To be filled in</h2>\n<dl class="faint">{rows}</dl>'


def _code(source: str) -> str:
    return " ".join(re.findall(r"`[^`]+`", source))
