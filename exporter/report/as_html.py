"""A report as one HTML file that needs no other file and runs no script."""

from collections.abc import Iterator
from html import escape
from typing import Final

from exporter.report.document import Document, Section, Table

# Colours of the live page: each pair has a contrast of 4.5 to 1 or more.
STYLE: Final = """\
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1d2126; --quiet: #59626d;
  --rule: #d6dae0; --line: #1f60c4; --bar: #b4470a; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --ink: #e4e7eb;
  --quiet: #a3acb8; --rule: #343a42; --line: #7fb0ff; --bar: #ff9b5c; } }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; border-bottom: 1px solid var(--rule); }
p { margin: .2rem 0; }
.table { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-size: 13px; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
th { color: var(--quiet); font-weight: 600; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
tr.sum td { font-weight: 600; border-top: 2px solid var(--rule); }
svg { display: block; width: 100%; max-width: 45rem; margin: .6rem 0; }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
svg text.name { text-anchor: end; }
svg .grid { stroke: var(--rule); }
svg .line { fill: none; stroke: var(--line); stroke-width: 1.6; stroke-linejoin: round; }
svg .bar { fill: var(--bar); }
@media print { body { max-width: none; } }
"""


def as_html(document: Document) -> str:
    """Return *document* as a page; all that comes from a job is escaped."""
    title = escape(document.title)
    lead = "".join(f"<p>{escape(line)}</p>\n" for line in document.lines)
    sections = "".join("".join(_section(section)) for section in document.sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{title}</h1>\n{lead}{sections}</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> Iterator[str]:
    yield f"<section>\n<h2>{escape(section.title)}</h2>\n"
    for line in section.lines:
        yield f"<p>{escape(line)}</p>\n"
    if section.picture is not None:
        yield f"{section.picture.svg}\n"
    if section.table is not None:
        yield from _table(section.title, section.table)
    yield "</section>\n"


def _table(name: str, table: Table) -> Iterator[str]:
    # Who has no mouse must be able to scroll it.
    yield f'<div class="table" role="group" aria-label="Table: {escape(name)}" tabindex="0">\n'
    yield "<table>\n<thead><tr>"
    kinds = [' class="number"' if column.is_number else "" for column in table.columns]
    for column, kind in zip(table.columns, kinds, strict=True):
        yield f'<th scope="col"{kind}>{escape(column.name)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for n, row in enumerate(table.rows, start=1):
        sum_class = ' class="sum"' if table.has_sum and n == len(table.rows) else ""
        cells = (f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        yield f"<tr{sum_class}>{''.join(cells)}</tr>\n"
    yield "</tbody>\n</table>\n</div>\n"
