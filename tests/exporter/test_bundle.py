"""What an operator needs besides the exporter is found."""

from pathlib import Path

import pytest

from exporter import bundle
from exporter.bundle import PLACES, bundled
from exporter.errors import StartError
from tests.exporter.installed import DIRECTORIES, installed


@pytest.mark.parametrize("kind", ["wheel", "checkout"])
def test_files_are_found_in_a_wheel_and_in_a_checkout(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name leads to the same content in either kind of installation."""
    monkeypatch.setattr(bundle, "PACKAGE", installed(kind, tmp_path))

    assert {name: bundled(name).is_dir() for name in PLACES} == {
        **dict.fromkeys(DIRECTORIES, True),
        "alerts/advice.yaml": False,
        "alerts/alertmanager.yaml": False,
        "alerts/notifications.tmpl": False,
        "alerts/playbook.md": False,
    }
    assert (bundled("dashboards") / "one.txt").read_text() == "dashboards"


def test_damaged_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel without its rules reports that."""
    monkeypatch.setattr(bundle, "PACKAGE", tmp_path / "exporter")

    with pytest.raises(StartError, match="alerts/rules is not in this installation"):
        bundled("alerts/rules")
