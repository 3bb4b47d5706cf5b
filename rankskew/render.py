"""Reports as text for a terminal, and as Markdown for a ticket."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rankskew.wording import NOT_KNOWN

# The column of this name is left out if nothing in it is known.
MONEY: Final = ">US$"
# Sentences and facts are wrapped for a terminal of so many columns.
COLUMNS: Final = 100
LABEL: Final = 12


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, *facts*, and a table if there are *rows*.

    A > begins the *names* of numeric columns. A fact is a label and a text that may have `code`.
    """

    title: str
    lines: Sequence[str] = ()
    names: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    facts: Sequence[tuple[str, str]] = ()


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
    parts = [[line for each in (document.title, *document.lines) for line in _wrapped(each)]]
    for section in document.sections:
        lines = [line for each in section.lines for line in _wrapped(each, "  ", "  ")]
        table = [f"  {line}".rstrip() for line in _aligned(section)]
        parts.append([*_wrapped(section.title), *lines, *table, *_labelled(section)])
    return "\n\n".join("\n".join(part) for part in parts)


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _labelled(section: Section) -> list[str]:
    """Return the facts; a label that repeats the one above is left out."""
    lines, last = [], ""
    for label, text in section.facts:
        shown = label if label != last else ""
        lines += _wrapped(text, f"  {shown:<{LABEL}}", " " * (LABEL + 2))
        last = label
    return lines


def _markdown(document: Document) -> str:
    parts = [f"# {_escaped(document.title)}", "\n".join(map(_escaped, document.lines))]
    for section in document.sections:
        parts += [f"## {_escaped(section.title)}", "\n".join(map(_escaped, section.lines))]
        parts.append("\n".join(_markdown_table(section)))
        parts.append("\n".join(f"- **{label}:** {_plain(text)}" for label, text in section.facts))
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
    indented = re.sub("^ +", lambda spaces: "&nbsp;" * len(spaces[0]), text)
    return "".join(f"\\{char}" if char in "\\|<>[]*_`" else char for char in indented)


def _plain(text: str) -> str:
    """Return *text* so that no name in it can be HTML, or a heading of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
