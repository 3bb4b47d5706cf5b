"""Every generated file is what its generator writes, and the check says which one is not."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

import alerts.build
import dashboards.build
import generators.build
from generators.files import write_or_check


@pytest.mark.parametrize("build", [alerts.build, dashboards.build, generators.build])
def test_committed_files_are_fresh(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make check` says the same."""
    monkeypatch.setattr(sys, "argv", ["build", "--check"])

    assert build.main() == 0


def test_stale_file_is_named_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --check nothing is written; what is missing or left over is stale, too."""
    old, missing, fresh, left_over = (tmp_path / name for name in ("old", "new", "fresh", "left"))
    texts = {old: "1", missing: "2", fresh: "3"}
    old.write_text("0")
    fresh.write_text("3")

    monkeypatch.setattr(sys, "argv", ["build", "--check"])
    assert write_or_check(texts, "make it", [left_over]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"stale: {os.path.relpath(path)}; run `make it` and commit"
        for path in (old, missing, left_over)
    ]
    assert old.read_text() == "0"
    assert write_or_check({fresh: "3"}, "make it") == 0
    monkeypatch.setattr(sys, "argv", ["build"])
    assert write_or_check(texts, "make it") == 0
    assert {path: path.read_text() for path in texts} == texts
