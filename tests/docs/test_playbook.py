"""The playbook has a section for each cause, which speaks of every detail of it."""

import re
from pathlib import Path

import pytest

from exporter.causes.explain import ROWS
from rankskew.diagnose.advice import advice

PAGE = Path(__file__).parents[2] / "docs" / "playbook.md"
SECTIONS = dict(
    re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)


def test_every_cause_has_a_section() -> None:
    """And no section is about something else."""
    assert SECTIONS.keys() == set(advice())


@pytest.mark.parametrize("cause", advice())
def test_section_names_every_detail(cause: str) -> None:
    """Who reads `input (nfs)` in an alert finds it there."""
    section = SECTIONS[cause]

    assert all(f"`{row.detail}`" in section for row in ROWS if row.cause == cause and row.detail)
    assert "Over when:" in section
