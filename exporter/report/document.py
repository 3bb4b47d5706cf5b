"""What a report says, before it is text, Markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MONEY: Final = "US$"
NOT_KNOWN: Final = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; *is_number* ones are aligned to the right."""

    name: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the last of them is the sum of the others if *has_sum*."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    has_sum: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG, with *says* for those who cannot see it."""

    svg: str
    says: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, and perhaps a picture and a table under it."""

    title: str
    lines: Sequence[str] = ()
    table: Table | None = None
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A report; *lines* say what matters most."""

    title: str
    lines: Sequence[str] = ()
    sections: Sequence[Section] = field(default_factory=list)


def priced(table: Table) -> Table:
    """Return *table* without its money if nothing in it has a price."""
    place = [column.name for column in table.columns].index(MONEY)
    if any(row[place] != NOT_KNOWN for row in table.rows):
        return table
    names = [*table.columns[:place], *table.columns[place + 1 :]]
    return Table(names, [[*row[:place], *row[place + 1 :]] for row in table.rows], table.has_sum)


def columns(*names: str) -> list[Column]:
    """Return columns; a name that begins with > is that of numbers."""
    return [Column(name.removeprefix(">"), name.startswith(">")) for name in names]
