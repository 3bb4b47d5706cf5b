"""The page on removal leaves nothing behind, and nothing else is touched."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rankskew.commands.files import write_files
from tests.exporter.running import running_exporter
from tests.exporter.snapshots import snapshot

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lifecycle.md"
OTHERS = (
    "etc/default/ssh",
    "etc/prometheus/prometheus.yml",
    "etc/prometheus/own/rules.yaml",
    "etc/systemd/system/ssh.service",
    "opt/other/bin/python",
    "run/other.sock",
    "usr/local/share/man",
    "var/lib/other/state",
)


def commands(heading: str) -> str:
    """Return what a section of the page says to type."""
    section = PAGE.read_text().partition(f"### {heading}\n")[2].partition("\n###")[0]
    return "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.glob("**/*") if not path.is_dir()}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The root directory of a node with files of others."""
    root = tmp_path / "root"
    for name in OTHERS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def install(root: Path) -> None:
    """Put there what an installation does, and let an exporter run until it is killed."""
    write_files(root / "usr/local/share/rankskew")
    write_files(root / "etc/prometheus/rankskew")
    shutil.copy(ROOT / "deploy/prometheus/overrides.yaml", root / "etc/prometheus")
    (root / "etc/prometheus/overrides.yaml").rename(root / "etc/prometheus/rankskew-overrides.yaml")
    units = root / "etc/systemd/system"
    shutil.copy(ROOT / "deploy/systemd/rankskew-exporter.service", units)
    (units / "rankskew-exporter.service.d").mkdir()
    shutil.copy(ROOT / "deploy/systemd/see-all.conf", units / "rankskew-exporter.service.d")
    (root / "etc/default/rankskew-exporter").touch()
    (root / "opt/rankskew/bin").mkdir(parents=True)
    (root / "opt/rankskew/bin/rankskew").touch()
    state = root / "var/lib/rankskew"
    state.mkdir()
    (state / "gpus.json").touch()
    flags = (f"--path.state={state}", f"--operator.socket={root}/run/rankskew-operator/o.sock")
    with running_exporter(root / "run/rankskew/exporter.sock", *flags) as exporter:
        assert exporter.push(snapshot().to_json())[0] == 200


def run(lines: str, root: Path, directory: Path) -> list[str]:
    """Type *lines* on the node below *root*; return what was asked of programs that are not ours.

    They are stand-ins in *directory*, which note their arguments.
    """
    asked = directory / "asked"
    for name in ("systemctl", "userdel", "promtool", "pidof", "kill"):
        program = directory / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> "{asked}"\n')
        program.chmod(0o755)
    here = re.sub(r"(?<=[\s\"])/(etc|opt|run|usr|var)/", rf"{root}/\1/", lines)
    done = subprocess.run(
        ["bash", "-euc", f"enable -n kill\n{here}"],
        env=os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.replace(str(root), "").rstrip() for line in asked.read_text().splitlines()]


def test_nothing_is_left_of_an_installation(node: Path, tmp_path: Path) -> None:
    """Files, sockets, state, unit, rules and the user are gone; files of others are there."""
    before = tree(node)
    install(node)
    assert len(tree(node) - before) > 100
    assert "run/rankskew/exporter.sock" in tree(node)
    lines = commands("From a node with systemd")
    lines += commands("From Prometheus, Alertmanager and Grafana")
    asked = run(lines, node, tmp_path)

    assert tree(node) == before
    assert not [path for path in node.glob("**/*rankskew*")]
    assert asked == [
        "systemctl disable --now rankskew-exporter",
        "systemctl daemon-reload",
        "userdel rankskew",
        "promtool check config /etc/prometheus/prometheus.yml",
        "pidof prometheus",
        "kill -HUP",
    ]


def test_page_names_every_directory_of_the_unit() -> None:
    """What the unit makes and reads is removed."""
    unit = (ROOT / "deploy/systemd/rankskew-exporter.service").read_text()
    typed = commands("From a node with systemd").split()
    [run_directories] = re.findall(r"^RuntimeDirectory=(.+)$", unit, re.MULTILINE)
    [state] = re.findall(r"^StateDirectory=(.+)$", unit, re.MULTILINE)
    [defaults] = re.findall(r"^EnvironmentFile=-(.+)$", unit, re.MULTILINE)
    [user] = re.findall(r"^User=(.+)$", unit, re.MULTILINE)
    [program] = re.findall(r"^ExecStart=(.+)/bin/rankskew ", unit, re.MULTILINE)

    assert {f"/run/{name}" for name in run_directories.split()} <= set(typed)
    assert {f"/var/lib/{state}", defaults, program, user} <= set(typed)
