"""What the documentation lists, links to, repeats and tells readers to type is so."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dashboards.detail import collectors
from exporter.causes.explain import ROWS
from exporter.vocabulary.advice import advice
from rank_probe.collectives.report import as_prometheus
from rank_probe.version import __version__
from rankskew.commands.table import COMMANDS, load
from tests.rank_probe.fakes import hosts, pair_times, result

ROOT: Final = Path(__file__).parents[1]
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
# What a command prints, an image's tag, a file of the release, a chart's fields, an image's label.
VERSIONS: Final = (
    r"\brankskew[ :-]v?(\d+\.\d+\.\d+)",
    r"^(?:version|appVersion): \"?v?(\d+\.\d+\.\d+)",
    r"image\.version=\"?v?(\d+\.\d+\.\d+)",
    r"app\.kubernetes\.io/version: \"?v?(\d+\.\d+\.\d+)",
    r"helm\.sh/chart: rankskew-(\d+\.\d+\.\d+)",
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """Return the page without its fenced blocks, whose comments are not headings or links."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def in_textfile() -> set[str]:
    """Return the metrics that `rank-probe bench-collectives --textfile` writes."""
    text = as_prometheus(result(pair_times(hosts(1, 4)), hosts(1, 4)), 0.0)
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def test_metrics_of_the_pages_are_those_that_there_are() -> None:
    """Those of the textfile are listed, and those of GPUs with their source.

    A metric in backquotes is one that the exporter exposes, or a textfile of rank-probe.
    """
    rows = re.findall(r"^\| ([^|]*`rankskew_[^|]*)\|", read("docs/hardware.md"), re.MULTILINE)
    of_gpus = {name for name, collector in collectors().items() if collector.startswith(HARDWARE)}
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(rankskew_[a-z_]+)(?:\{[^}]*\})?(?: \d)?`", prose(page))
    }

    assert len(of_gpus) > 40
    assert all(f"| `{name}` |" in read("docs/collectives.md") for name in in_textfile())
    assert of_gpus <= set(re.findall(r"`(rankskew_\w+)`", "".join(rows)))
    assert named - collectors().keys() - in_textfile() == set()


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of *page*, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> Iterator[str]:
    """Yield each relative link or picture that does not exist, or whose heading does not."""
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        target = page.parent / link if link else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            yield f"{page}: {link}#{anchor}"


def test_links_lead_somewhere() -> None:
    """Every relative link and picture of a page exists, and so does the heading that it names."""
    assert [link for page in PAGES for link in dead_links(page)] == []


def commands(text: str) -> Iterator[str]:
    """Yield each command line of `rankskew` in the code blocks of a page."""
    for language, block in FENCE.findall(text):
        if language in ("", "sh", "console", "bash"):
            lines = block.replace("\\\n", " ").splitlines()
            yield from (line.strip() for line in lines if line.strip().startswith("rankskew "))
    yield from INDENTED.findall(FENCE.sub("", text))


def test_command_lines_are_accepted() -> None:
    """Their options exist, and their values make sense."""
    written = {line for page in PAGES for line in commands(page.read_text())}
    seen = set()
    for line in written:
        name, *words = shlex.split(END.sub("", line))[1:]
        seen.add(name)
        if name.startswith("-") or name == "COMMAND" or "--help" in words:
            continue
        assert name in COMMANDS, line
        try:
            load(name).parser().parse_args(words)
        except SystemExit as error:
            raise AssertionError(line) from error

    assert seen >= {"exporter", "files", "replay", "top"}


def test_version_is_repeated_right() -> None:
    """A page, a chart or an image of this release names that of rank_probe/version.py."""
    places = [ROOT / "Dockerfile", *PAGES, *(ROOT / "deploy").rglob("*")]
    texts = [path for path in places if path.is_file() and path.suffix not in (".png", ".svg")]
    found = {
        path: {v for each in VERSIONS for v in re.findall(each, path.read_text(), re.MULTILINE)}
        for path in texts
    }

    assert {path: said for path, said in found.items() if said - {__version__}} == {}
    assert found[ROOT / "docs" / "operating.md"]
    assert found[ROOT / "deploy" / "helm" / "rankskew" / "Chart.yaml"]


def test_playbook_has_a_section_for_each_cause() -> None:
    """Who reads `input (nfs)` in an alert finds it there, and when it is over."""
    page = read("docs/playbook.md")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))

    assert sections.keys() == set(advice())
    assert [
        row for row in ROWS if row.detail and f"`{row.detail}`" not in sections[row.cause]
    ] == []
    assert [cause for cause, section in sections.items() if "Over when:" not in section] == []
