"""Generated Markdown: tables, and the places in a page that hold them."""

import re
from collections.abc import Iterable, Mapping


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; a bar or a line break in a cell does not end the cell."""
    lines = [header, ("---",) * len(header), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Return *page* with each part between `<!-- NAME: generated ... -->` and `<!-- end -->`.

    Raises ValueError if a part has no place, or more than one.
    """
    for name, part in parts.items():
        pattern = rf"<!-- {name}: generated[^>]*-->\n(.*?)<!-- end -->"
        places = list(re.finditer(pattern, page, re.DOTALL))
        if len(places) != 1:
            raise ValueError(f"the page has {len(places)} places for {name}, it needs one")
        page = f"{page[: places[0].start(1)]}\n{part}\n\n{page[places[0].end(1) :]}"
    return page
