"""What the documentation lists exists, and what is generated is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import build, metrics_table
from exporter.scrape.levels import exposed_name
from rank_probe.collectives.metrics import as_prometheus
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def text_of(path: Path) -> str:
    """Return the page without its fenced blocks, whose comments are not headings or links."""
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def test_generated_pages_are_up_to_date() -> None:
    """What `make docs` would write is what is committed."""
    assert build.stale() == {}


def test_every_metric_of_a_collector_is_listed() -> None:
    """docs/metrics.md has a row for each family that the exporter can expose."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    families = [f for _, _, families in metrics_table.families_by_collector() for f in families]

    assert len(families) > 50
    assert all(f"| `{exposed_name(family)}` |" in page for family in families)


def test_every_flag_of_the_help_is_listed() -> None:
    """docs/configuration.md has each flag that `rankskew exporter --help` has."""
    command = [sys.executable, "-m", "rankskew", "exporter", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    flags = set(re.findall(r"^  (--[^\s,]+)", shown, re.MULTILINE)) - {"--help"}
    page = (ROOT / "docs" / "configuration.md").read_text()

    assert len(flags) > 20
    assert all(
        f"`{flag}`" in page or f"`{flag.replace('--', '--[no-]', 1)}`" in page for flag in flags
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link and picture of a page exists."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(page))
    missing = [
        link
        for link in links
        if not link.startswith(("http://", "https://")) and not (page.parent / link).exists()
    ]

    assert missing == []


def in_textfile() -> set[str]:
    """Return the metrics that `rank-probe bench-collectives --textfile` writes."""
    text = as_prometheus(result(pair_times(hosts(1, 4)), hosts(1, 4)), 0.0)
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def test_every_metric_of_the_textfile_is_listed() -> None:
    """docs/collectives.md has them, as docs/metrics.md has the exporter's."""
    page = (ROOT / "docs" / "collectives.md").read_text()

    assert all(f"| `{name}` |" in page for name in in_textfile())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metrics_named_in_prose_exist(page: Path) -> None:
    """A metric in backquotes is one that the exporter exposes, or a textfile of rank-probe."""
    exposed = {
        family
        for _, _, families in metrics_table.families_by_collector()
        for family in (exposed_name(f) for f in families)
    }
    named = set(re.findall(r"`(rankskew_[a-z_]+)(?:\{[^}]*\})?(?: \d)?`", text_of(page)))

    assert named - exposed - in_textfile() == set()
