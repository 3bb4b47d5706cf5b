"""Reports as text for a terminal, and as Markdown for a ticket."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankskew.wording import NOT_KNOWN

# The column of this name is left out if nothing in it is known.
MONEY: Final = ">US$"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, and a table if there are *rows*; > begins the *names* of numbers."""

    title: str
    lines: Sequence[str] = ()
    names: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """A report; *lines* say what matters most."""

    title: str
    lines: Sequence[str]
    sections: Sequence[Section]


def render(document: Document, *, markdown: bool = False) -> str:
    """Return *document* as text, with tables whose columns are aligned, or as *markdown*."""
    return _markdown(document) if markdown else _text(document)


def _text(document: Document) -> str:
    parts = ["\n".join([document.title, *document.lines])]
    for section in document.sections:
        lines = [*section.lines, *_aligned(section)]
        parts.append("\n".join([section.title, *(f"  {line}".rstrip() for line in lines)]))
    return "\n\n".join(parts)


def _markdown(document: Document) -> str:
    parts = [f"# {_escaped(document.title)}", "\n".join(map(_escaped, document.lines))]
    for section in document.sections:
        parts += [f"## {_escaped(section.title)}", "\n".join(map(_escaped, section.lines))]
        parts.append("\n".join(_markdown_table(section)))
    return "\n\n".join(part for part in parts if part)


def _columns(section: Section) -> list[tuple[str, list[str], bool]]:
    """Return the name and cells of each column of a table, and whether they are numbers."""
    found = zip(section.names, zip(*section.rows, strict=True), strict=True)
    return [
        (name.removeprefix(">"), list(cells), name.startswith(">"))
        for name, cells in (found if section.rows else ())
        if name != MONEY or any(cell != NOT_KNOWN for cell in cells)
    ]


def _aligned(section: Section) -> list[str]:
    columns = []
    for name, cells, is_number in _columns(section):
        width = max(map(len, [name, *cells]))
        columns.append([f"{cell:{'>' if is_number else '<'}{width}}" for cell in [name, *cells]])
    return ["  ".join(row) for row in zip(*columns, strict=True)]


def _markdown_table(section: Section) -> list[str]:
    columns = [
        [name, "---:" if is_number else "---", *map(_escaped, cells)]
        for name, cells, is_number in _columns(section)
    ]
    return [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]


def _escaped(text: str) -> str:
    """Return *text* so that Markdown shows it as it is; names of jobs may contain anything."""
    return "".join(f"\\{char}" if char in "\\|<>[]*_`" else char for char in text)
