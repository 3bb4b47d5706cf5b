"""What the Dockerfile says; tests/deploy/test_image.py builds and runs it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from devstack.parts import ExporterProcess
from exporter.settings import Settings

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "deploy" / "image"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, continuation lines joined: names and values."""
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    _, *found = re.split(r"^(?=FROM )", joined, flags=re.MULTILINE)
    return [re.findall(r"^(\S+) (.*)$", stage, re.MULTILINE) for stage in found]


def values(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in stage if each == name]


def pinned(name: str) -> dict[str, str]:
    """Return the version of each package in the requirements file *name*."""
    return dict(re.findall(r"^(\S+)==(\S+) ", (IMAGE / name).read_text(), re.MULTILINE))


def test_health_check_tells_a_running_exporter(tmp_path: Path) -> None:
    """The image's script finds a running exporter healthy, and says where none listens."""
    _, final = stages()
    [health] = values(final, "HEALTHCHECK")
    command = json.loads(health[health.index("[") :])
    assert command == ["python3", "-I", "-S", "/opt/rankskew/health_check.py"]
    assert f'SOCKET = "{Settings().operator_socket}"' in (IMAGE / "health_check.py").read_text()

    socket = tmp_path / "operator.sock"
    check = [sys.executable, *command[1:3], str(IMAGE / "health_check.py"), str(socket)]
    with ExporterProcess(tmp_path):
        assert subprocess.check_output(check, text=True) == "The exporter is healthy.\n"
    said = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, "")
    assert said.stdout.startswith(f"no answer from {socket}: ")


def test_image_runs_a_supported_python_and_not_as_root() -> None:
    """One base for all stages and the demo: a Python that the package allows, with its digest.

    The user is a number other than 0, which Kubernetes' runAsNonRoot can check.
    """
    base = re.compile(r"^ARG BASE=python:3\.(\d+)\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", re.MULTILINE)
    given = re.compile(r"^ARG BASE=.*", re.MULTILINE)
    demo = (ROOT / "deploy" / "compose" / "demo.Dockerfile").read_text()
    [minor] = base.findall(DOCKERFILE)
    [user] = values(stages()[-1], "USER")

    assert {values(stage, "FROM")[0].split()[0] for stage in stages()} == {"${BASE}"}
    assert given.findall(demo) == given.findall(DOCKERFILE)
    assert int(minor) >= 11
    assert int(user) > 0


def test_all_is_installed_with_hashes() -> None:
    """What is not the wheel itself is checked against a hash, what builds it too."""
    build, final = stages()
    steps = [step for run in values(build, "RUN") for step in run.split("&&")]
    installs = [step for step in steps if "pip install " in step]

    assert len(installs) == 3
    assert all("--require-hashes" in step or "--no-deps /wheels/" in step for step in installs)
    assert not [run for run in values(final, "RUN") if "pip" in run]


def test_pinned_packages_are_those_of_the_project() -> None:
    """Each package that the exporter, or its build, asks for is pinned, to an allowed version."""
    for wanted, file in (
        (PYPROJECT["project"]["optional-dependencies"]["exporter"], "requirements.txt"),
        (PYPROJECT["build-system"]["requires"], "build-requirements.txt"),
    ):
        versions = pinned(file)
        for each in map(Requirement, wanted):
            assert each.specifier.contains(versions[each.name]), f"make lock: {each}"
