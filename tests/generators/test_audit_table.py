"""The table on the audit says what was measured."""

from pathlib import Path
from typing import Any

import pytest
from docs.audit_table import plants

from docs import figures
from tests.docs.test_figures import keep


def test_missed_and_false_findings_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a plant that was overlooked nor a false alarm can hide in the table."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    clean: dict[str, Any] = {
        "planted": "nothing",
        "check": None,
        "found": None,
        "as": None,
        "others found": "mtu",
    }
    found: dict[str, Any] = {
        "planted": "a",
        "check": "numa",
        "found": "yes",
        "as": "fail",
        "others found": None,
    }
    missed: dict[str, Any] = {
        "planted": "b",
        "check": "cpus",
        "found": "NO",
        "as": None,
        "others found": None,
    }
    keep(tmp_path, "audit", [clean, found, missed])

    text = plants().splitlines()
    assert text[0] == "1 of 2 were found; in 2 of 3 launches nothing else was."
    assert text[-3:] == [
        "| nothing |  |  | mtu |",
        "| a | `numa` | fail | nothing |",
        "| b | `cpus` | not found | nothing |",
    ]
