"""What the documentation tells readers to type is accepted by the commands of this release."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rankskew.commands.table import COMMANDS, load

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "alerts/**/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
# In a fenced block, or indented as one.
FENCE: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INDENTED: Final = re.compile(r"^ {4,}(rankskew .*)$", re.MULTILINE)
# What a shell takes from a line before the command sees it.
END: Final = re.compile(r"\s(#|[|&;>]|&&).*$")


def commands(text: str) -> Iterator[str]:
    """Yield each command line of `rankskew` in the code blocks of a page."""
    for language, block in FENCE.findall(text):
        if language in ("", "sh", "console", "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            yield from (line.strip() for line in lines if line.strip().startswith("rankskew "))
    yield from INDENTED.findall(FENCE.sub("", text))


def written() -> list[tuple[str, str]]:
    """Every page with a command line in it."""
    found = [
        (str(page.relative_to(ROOT)), line)
        for page in PAGES
        for line in commands(page.read_text(encoding="utf-8"))
    ]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(("page", "line"), written())
def test_command_line_is_accepted(page: str, line: str) -> None:
    """Its options exist, and their values make sense."""
    words = shlex.split(END.sub("", line))[1:]
    if words[0].startswith("-") or words[0] == "COMMAND":
        return
    assert words[0] in COMMANDS, page
    if "--help" not in words:
        load(words[0]).parser().parse_args(words[1:])


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_python_is_python(page: str) -> None:
    """A reader may copy it."""
    for language, block in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "python":
            indented = len(block) - len(block.lstrip(" "))
            ast.parse(re.sub(rf"^ {{{indented}}}", "", block, flags=re.MULTILINE))


def test_there_are_command_lines() -> None:
    """The patterns above still find them."""
    assert {line.split()[1] for _, line in written()} >= {"exporter", "files", "replay", "top"}
