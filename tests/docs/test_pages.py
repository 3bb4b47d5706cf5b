"""What the documentation lists, links to and tells readers to type exists."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from exporter.scrape.levels import exposed_name
from generators.listed.metrics import families_by_collector
from rank_probe.collectives.report import as_prometheus
from rankskew.commands.table import COMMANDS, load
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

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
# Of the collectors that docs/hardware.md explains.
HARDWARE: Final = ("gpu_",)
EXPOSED: Final = {
    exposed_name(family): collector
    for collector, _, families in families_by_collector()
    for family in families
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return the page without its fenced blocks, whose comments are not headings or links."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def in_textfile() -> set[str]:
    """Return the metrics that `rank-probe bench-collectives --textfile` writes."""
    text = as_prometheus(result(pair_times(hosts(1, 4)), hosts(1, 4)), 0.0)
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def test_every_metric_is_listed() -> None:
    """Those of the exporter, those of the textfile, and those of GPUs with how they are read."""
    rows = re.findall(r"^\| ([^|]*`rankskew_[^|]*)\|", read("docs/hardware.md"), re.MULTILINE)
    of_gpus = {name for name, collector in EXPOSED.items() if collector.startswith(HARDWARE)}

    assert len(of_gpus) > 40
    assert all(f"| `{name}` |" in read("docs/metrics.md") for name in EXPOSED)
    assert all(f"| `{name}` |" in read("docs/collectives.md") for name in in_textfile())
    assert of_gpus <= set(re.findall(r"`(rankskew_\w+)`", "".join(rows)))


def test_every_flag_of_the_help_is_listed() -> None:
    """docs/configuration.md has each flag that `rankskew exporter --help` has."""
    command = [sys.executable, "-m", "rankskew", "exporter", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    flags = set(re.findall(r"^  (--[^\s,]+)", shown, re.MULTILINE)) - {"--help"}
    listed = set(re.findall(r"`(--[^`]+)`", read("docs/configuration.md")))

    assert len(flags) > 20
    assert flags <= listed | {flag.replace("--[no-]", "--") for flag in listed}


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of *page*, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture of a page exists, and so does the heading that it names."""
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}#{anchor}"


@each_page
def test_metrics_named_in_prose_exist(page: Path) -> None:
    """A metric in backquotes is one that the exporter exposes, or a textfile of rank-probe."""
    named = set(re.findall(r"`(rankskew_[a-z_]+)(?:\{[^}]*\})?(?: \d)?`", prose(page)))

    assert named - EXPOSED.keys() - in_textfile() == set()


def commands(text: str) -> Iterator[str]:
    """Yield each command line of `rankskew` in the code blocks of a page."""
    for language, block in FENCE.findall(text):
        if language in ("", "sh", "console", "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            yield from (line.strip() for line in lines if line.strip().startswith("rankskew "))
    yield from INDENTED.findall(FENCE.sub("", text))


WRITTEN: Final = {
    line: str(page.relative_to(ROOT)) for page in PAGES for line in commands(page.read_text())
}


@pytest.mark.parametrize("line", WRITTEN)
def test_command_line_is_accepted(line: str) -> None:
    """Its options exist, and their values make sense."""
    words = shlex.split(END.sub("", line))[1:]
    if words[0].startswith("-") or words[0] == "COMMAND":
        return
    assert words[0] in COMMANDS, WRITTEN[line]
    if "--help" not in words:
        load(words[0]).parser().parse_args(words[1:])


def test_there_are_command_lines() -> None:
    """The patterns above still find them."""
    assert {line.split()[1] for line in WRITTEN} >= {"exporter", "files", "replay", "top"}


@each_page
def test_python_is_python(page: Path) -> None:
    """A reader may copy it."""
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            indented = len(block) - len(block.lstrip(" "))
            ast.parse(re.sub(rf"^ {{{indented}}}", "", block, flags=re.MULTILINE))
