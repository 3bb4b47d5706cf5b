"""Every generated file is what its generator writes, and the check says which one is not."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

import alerts.build
import dashboards.build
import generators.build


@pytest.mark.parametrize("build", [alerts.build, dashboards.build, generators.build])
def test_committed_files_are_fresh(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make check` says the same."""
    monkeypatch.setattr(sys, "argv", ["build", "--check"])

    assert build.main() == 0


@pytest.mark.parametrize(
    ("build", "place", "name"),
    [
        (alerts.build, "FILE", "thresholds.yaml"),
        (dashboards.build, "JSON", "fleet.json"),
        (generators.build, "ROOT", "docs/metrics.md"),
    ],
)
def test_stale_file_is_named_and_written_anew(
    build: ModuleType,
    place: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With --check nothing is written; without it, what was stale is as committed."""
    copy, committed = tmp_path / name, getattr(build, place) / name
    copy.parent.mkdir(exist_ok=True)
    if place == "FILE":
        committed = build.FILE
    copy.write_text("old\n")
    monkeypatch.setattr(build, place, copy if place == "FILE" else tmp_path)
    if place == "ROOT":
        monkeypatch.setattr(build, "WHOLE", {name: build.WHOLE[name]})
        monkeypatch.setattr(build, "PARTS", {})

    monkeypatch.setattr(sys, "argv", ["build", "--check"])
    assert build.main() == 1
    assert name in capsys.readouterr().err
    assert copy.read_text() == "old\n"
    monkeypatch.setattr(sys, "argv", ["build"])
    assert build.main() == 0
    assert copy.read_text() == committed.read_text()
