"""A table as wide as the terminal: its columns give way in turn, then its names are shortened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from rankskew.top.words import NOTHING

Row = TypeVar("Row")

GAP: Final = 2
EMPTY: Final = {"", NOTHING}
SHORTEST_NAME: Final = 4


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column whose *cell* is text in a *style*, or drawn.

    In a narrow terminal the column with the highest *gives_way* goes first; one with 0 stays. If
    that is not enough, columns that are a *name* are shortened.
    """

    title: str
    cell: Callable[[Row], str | Text]
    gives_way: int = 0
    justify: Literal["left", "right"] = "left"
    is_name: bool = False


def table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], style: Callable[[Row], str], width: int
) -> Table:
    """Return *rows* with those of *columns* that say anything and fit into *width*."""
    used = [column for column in columns if not {_plain(column, row) for row in rows} <= EMPTY]
    widths = {column.title: _width(column, rows) for column in used}
    while (over := _total(widths) - width) > 0 and any(column.gives_way for column in used):
        used.remove(max(used, key=lambda column: column.gives_way))
        widths = {column.title: widths[column.title] for column in used}
    drawn = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bright_black")
    for column in used:
        if column.is_name and over > 0:
            shorter = max(SHORTEST_NAME, widths[column.title] - over)
            over -= widths[column.title] - shorter
            widths[column.title] = shorter
        drawn.add_column(column.title, justify=column.justify, no_wrap=True)
    for row in rows:
        cells = [_fitted(column.cell(row), widths[column.title]) for column in used]
        drawn.add_row(*cells, style=style(row))
    return drawn


def _plain(column: Column[Row], row: Row) -> str:
    return str(column.cell(row))


def _width(column: Column[Row], rows: Sequence[Row]) -> int:
    return max(cell_len(text) for text in (column.title, *(_plain(column, row) for row in rows)))


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _fitted(cell: str | Text, width: int) -> Text:
    if isinstance(cell, Text):
        return cell
    return Text(cell if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…")
