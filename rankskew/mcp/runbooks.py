"""The runbooks and the playbook's pages that come with the code, as Markdown."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from exporter.bundle import bundled
from rankskew.diagnose.advice import DOCS
from rankskew.mcp.ask import AskedServers
from rankskew.mcp.bounded import Document, ToolRefused

# Each place in a bundle, and its place in the documentation.
PLACES: Final = {"alerts/runbooks": "alerts/runbooks", "alerts/playbook": "docs/playbook"}
PAGES: Final = {
    path.stem: (path, f"{DOCS}/{place}/{path.name}")
    for name, place in PLACES.items()
    for path in sorted(bundled(name).glob("*.md"))
    if path.stem != "README"
}
COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)
SECTION: Final = re.compile(r"^## +(.+)\n", re.MULTILINE)


async def runbook(servers: AskedServers, given: Mapping[str, str]) -> Document:
    """Return the page that is named, or a section of it; raises ToolRefused."""
    path, link = PAGES[_one_of(PAGES, given["name"], "runbook")]
    text = COMMENT.sub("", path.read_text(encoding="utf-8"))
    _, *parts = SECTION.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if "section" in given:
        title = _one_of(sections, given["section"], "section")
        text = f"## {title}\n{sections[title]}"
    return {"name": path.stem, "link": link, "sections": list(sections), "markdown": text}


def _one_of(names: Iterable[str], asked: str, what: str) -> str:
    """Return the name that is *asked* for, whatever its case; raises ToolRefused."""
    called = {name.lower(): name for name in names}
    if asked.lower() in called:
        return called[asked.lower()]
    alike = difflib.get_close_matches(asked.lower(), called, 1)
    hint = f"did you mean {called[alike[0]]}?" if alike else f"there are {', '.join(names)}"
    raise ToolRefused(f"there is no {what} {asked!r}; {hint}")
