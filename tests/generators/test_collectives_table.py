"""Tests that the page on collectives says what was measured."""

from pathlib import Path
from typing import Any

import pytest
from docs.collectives_table import links, loop, sample

from docs import figures
from tests.docs.test_figures import keep

LINK: dict[str, Any] = {"part": "links", "case": "link 1-3", "runs": 5, "right": 4, "named": "it"}
LOOP: dict[str, Any] = {
    "part": "loop",
    "collective": "all_reduce",
    "size": "4 MiB",
    "ours ms": 12.34,
    "plain ms": 12.5,
    "ratio": 0.9872,
    "from": 0.98,
    "to": 0.99,
}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results in place of the real one."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    keep(tmp_path, "collectives", [LINK, LOOP])
    (tmp_path / "collectives.txt").write_text("4 ranks\n\nslow: it\n")
    return tmp_path


def test_each_part_has_its_table() -> None:
    """A miss is told, and a ratio has its interval."""
    assert links().splitlines()[-1] == "| link 1-3 | 4 of 5 | it |"
    assert loop().splitlines()[-1] == (
        "| all_reduce | 4 MiB | 12.3 | 12.5 | 0.987 | 0.980 to 0.990 |"
    )


def test_sample_is_a_code_block() -> None:
    """Indented, with empty lines left empty."""
    assert sample() == "    4 ranks\n\n    slow: it"
