"""What an operator needs besides the exporter is written out, and no work is lost."""

from pathlib import Path

import pytest
import yaml

from exporter import bundle
from exporter.bundle import bundled
from exporter.errors import UsageError
from rankskew.__main__ import main
from rankskew.files.write import RULERS, RuleFormat, Ruler, write_files
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


def test_rules_for_vmalert_have_no_keep_firing_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses a file with that key, and needs the rest as it is."""
    monkeypatch.setattr(bundle, "PACKAGE", tmp_path / "exporter")
    for name in bundle.PLACES:
        place = tmp_path / "exporter" / "bundled" / name
        (place.parent if place.suffix else place).mkdir(parents=True, exist_ok=True)
        (place if place.suffix else place / "own.yaml").write_text("a: 1\n  keep_firing_for: 1m\n")
    out = tmp_path / "vmalert"
    write_files(out, wanted=RuleFormat(vmalert=True))

    assert (out / "alerts/rules/own.yaml").read_text() == "a: 1\n"
    assert (out / "alerts/runbooks/own.yaml").read_text() == "a: 1\n  keep_firing_for: 1m\n"


def test_rule_file_of_an_earlier_release_is_refused(installation: Path, tmp_path: Path) -> None:
    """Prometheus would load it beside the others, and page twice."""
    old = tmp_path / "out" / "alerts" / "rules" / "straggler.yaml"
    old.parent.mkdir(parents=True)
    old.write_text("groups: []")

    with pytest.raises(UsageError, match=r"straggler.yaml does not belong to these rules"):
        write_files(tmp_path / "out", overwrite=True)


@pytest.mark.parametrize("ruler", RULERS)
def test_rulers_get_the_form_that_they_know(tmp_path: Path, ruler: Ruler) -> None:
    """Mimir wants a namespace for each file, Thanos no answer rather than half of one."""
    written = write_files(tmp_path, wanted=RuleFormat(ruler=ruler))
    files = [yaml.safe_load(path.read_text()) for path in written if path.parent.name == "rules"]
    groups = [group for file in files for group in file["groups"]]

    assert len({file.get("namespace") for file in files}) == (len(files) if ruler == "mimir" else 1)
    assert {group.get("partial_response_strategy") for group in groups} == {
        "abort" if ruler == "thanos" else None
    }
