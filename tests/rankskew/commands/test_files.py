"""What an operator needs besides the exporter is written out, and no work is lost."""

import re
from pathlib import Path

import pytest

from exporter import bundle
from exporter.bundle import bundled
from exporter.errors import UsageError
from generators import alert_rules
from rankskew.__main__ import main
from rankskew.commands.files import write_files
from tests.exporter.installed import DIRECTORIES, installed


@pytest.fixture(params=["wheel", "checkout"])
def installation(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The package directory of a small installation of either kind."""
    package = installed(request.param, tmp_path)
    monkeypatch.setattr(bundle, "PACKAGE", package)
    return package


def test_everything_is_written_in_one_layout(installation: Path, tmp_path: Path) -> None:
    """`rankskew files` writes the same tree from either kind of installation."""
    out = tmp_path / "out"
    written = write_files(out)

    assert sorted(written) == sorted(path for path in out.glob("**/*") if path.is_file())
    assert {str(path.relative_to(out)) for path in written} == {
        "alerts/advice.yaml",
        "alerts/alertmanager.yaml",
        "alerts/notifications.tmpl",
        "alerts/playbook.md",
        *(f"{name}/one.txt" for name in DIRECTORIES),
    }


def test_script_stays_a_script(installation: Path, tmp_path: Path) -> None:
    """What a scheduler runs is written executable; the rest is not."""
    (bundled("deploy/systemd") / "one.txt").write_text("#!/bin/sh\n")
    write_files(tmp_path / "out")

    executable = {path for path in (tmp_path / "out").glob("**/*.txt") if path.stat().st_mode & 0o1}
    assert executable == {tmp_path / "out/deploy/systemd/one.txt"}


def test_changed_file_is_kept_unless_told_otherwise(installation: Path, tmp_path: Path) -> None:
    """Somebody's edited Alertmanager configuration does not vanish in an upgrade."""
    out = tmp_path / "out"
    write_files(out)
    write_files(out)
    edited = out / "alerts" / "alertmanager.yaml"
    edited.write_text("mine")

    with pytest.raises(UsageError, match=r"alertmanager.yaml was changed: .* add --overwrite"):
        write_files(out)
    assert edited.read_text() == "mine"
    write_files(out, overwrite=True)
    assert edited.read_text() == "route: {}"


def test_directory_that_cannot_be_written_is_one_line(
    installation: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path below a file ends in one line with the reason, not in a traceback."""
    (tmp_path / "file").write_text("")

    assert main(["files", str(tmp_path / "file" / "out")]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("rankskew: cannot write ")
    assert complaint.count("\n") == 1


def test_next_steps_are_three_lines_that_name_files_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rules, inhibition and dashboards; the configuration is one with the rules and their times."""
    assert main(["files", str(tmp_path)]) == 0
    first, *steps = capsys.readouterr().out.splitlines()
    [rules, config], [alertmanager], [dashboards] = (
        re.findall(rf"{tmp_path}/[\w/.*]*\w", step) for step in steps
    )

    assert (
        first
        == f"{len([p for p in tmp_path.rglob('*') if p.is_file()])} files written to {tmp_path}"
    )
    assert len(list(tmp_path.glob(rules.removeprefix(f"{tmp_path}/")))) == len(
        alert_rules.rule_files()
    )
    assert "evaluation_interval: 15s" in Path(config).read_text()
    assert "inhibit_rules:" in Path(alertmanager).read_text()
    assert list(tmp_path.glob(dashboards.removeprefix(f"{tmp_path}/")))
