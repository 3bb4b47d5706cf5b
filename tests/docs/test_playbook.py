"""The playbook has a page for each cause, and each page speaks of every detail of it."""

from pathlib import Path

import pytest

from exporter.causes.explain import ROWS
from rankskew.diagnose.advice import advice

PLAYBOOK = Path(__file__).parents[2] / "docs" / "playbook"


def test_every_cause_has_a_page() -> None:
    """And no page is about something else."""
    assert {path.stem for path in PLAYBOOK.glob("*.md")} == {*advice(), "README"}


@pytest.mark.parametrize("cause", advice())
def test_page_names_every_detail(cause: str) -> None:
    """Who reads `input (nfs)` in an alert finds it there."""
    page = (PLAYBOOK / f"{cause}.md").read_text()

    assert f"`{cause}`" in page.splitlines()[0]
    assert all(f"`{row.detail}`" in page for row in ROWS if row.cause == cause and row.detail)
    assert "Over when:" in page
