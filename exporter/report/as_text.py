"""A report as text for a terminal, and as Markdown."""

from collections.abc import Iterator, Sequence

from exporter.report.document import Document, Section, Table


def as_text(document: Document) -> str:
    """Return *document* as text; pictures are left out."""
    parts = ["\n".join([document.title, *document.lines])]
    parts += ["\n".join(_section(section)) for section in document.sections]
    return "\n\n".join(parts)


def as_markdown(document: Document) -> str:
    """Return *document* as Markdown; pictures are left out."""
    parts = [f"# {_escaped(document.title)}", "\n".join(map(_escaped, document.lines))]
    for section in document.sections:
        parts += [f"## {_escaped(section.title)}", "\n".join(map(_escaped, section.lines))]
        if section.table is not None:
            parts.append("\n".join(_markdown_table(section.table)))
    return "\n\n".join(part for part in parts if part)


def _section(section: Section) -> Iterator[str]:
    yield section.title
    yield from (f"  {line}" for line in section.lines)
    if section.table is not None:
        yield from (f"  {line}".rstrip() for line in _aligned(section.table))


def _aligned(table: Table) -> Iterator[str]:
    rows = [[column.name for column in table.columns], *table.rows]
    widths = [max(len(row[n]) for row in rows) for n in range(len(table.columns))]
    for row in rows:
        cells = [
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, table.columns, strict=True)
        ]
        yield "  ".join(cells)


def _markdown_table(table: Table) -> Iterator[str]:
    yield _row([column.name for column in table.columns])
    yield _row(["---:" if column.is_number else "---" for column in table.columns])
    yield from (_row([_escaped(cell) for cell in row]) for row in table.rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Return *text* so that Markdown shows it as it is; names of jobs may contain anything."""
    return "".join(f"\\{char}" if char in "\\|<>[]*_`" else char for char in text)
