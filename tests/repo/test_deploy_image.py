"""The Dockerfile's own commands, run without Docker: install, start, health."""

import json
import os
import re
import shutil
import subprocess
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from demo.process import Process, free_port, get

ROOT = Path(__file__).parents[2]
PINNED = "deploy/image/requirements.txt"


@dataclass(frozen=True)
class Instruction:
    name: str
    value: str


def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage, continuation lines joined."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Instruction]] = []
    for line in joined.splitlines():
        name, _, value = line.partition(" ")
        if name == "FROM":
            found.append([])
        if name:
            found[-1].append(Instruction(name, value))
    return found


def values(stage: list[Instruction], name: str) -> list[str]:
    return [each.value for each in stage if each.name == name]


def copy_of_context(target: Path) -> None:
    """Copy what .dockerignore lets through, as the build's COPY would."""
    kept = [
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    ]
    for name in kept:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy(source, target / name)


def run(command: str, directory: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@dataclass(frozen=True)
class Image:
    directory: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Install as the Dockerfile does, into clean directories and an empty environment."""
    directory = tmp_path_factory.mktemp("image")
    python = directory / "venv"
    venv.create(python, with_pip=True)
    environment = {name: os.environ[name] for name in os.environ if name.startswith("PIP_")}
    environment["PATH"] = f"{python / 'bin'}:/usr/bin:/bin"
    build, final = stages()

    source, installed = directory / "src", directory / "opt"
    source.mkdir()
    installed.mkdir()
    copy_of_context(source)
    assert values(build, "COPY") == [". ."]
    [wheel] = values(build, "RUN")
    run(wheel, source, environment)

    assert values(final, "COPY") == ["--from=build /src/wheels wheels", f"{PINNED} ."]
    shutil.copytree(source / "wheels", installed / "wheels")
    shutil.copy(source / PINNED, installed)
    install, _user = values(final, "RUN")  # The second makes a user of the image's own.
    run(install, installed, environment)
    return Image(installed, environment)


def test_image_holds_no_leftovers(image: Image) -> None:
    """The wheel is not left behind in the final layer."""
    assert list(image.directory.iterdir()) == []


def test_image_starts_and_is_healthy(image: Image, tmp_path: Path) -> None:
    """ENTRYPOINT and CMD serve metrics, and the HEALTHCHECK's own command finds them healthy."""
    _, final = stages()
    [entrypoint], [command] = values(final, "ENTRYPOINT"), values(final, "CMD")
    address = f"127.0.0.1:{free_port()}"
    start = json.loads(entrypoint) + json.loads(command)
    program = shutil.which(start[0], path=image.environment["PATH"])
    assert program is not None
    flags = [f"--web.listen-address={address}", f"--ingest.socket={tmp_path / 'exporter.sock'}"]
    flags.append(f"--operator.socket={tmp_path / 'operator.sock'}")
    exporter = Process("the image's exporter", [program, *start[1:], *flags], tmp_path / "log")
    exporter.ready_url = f"http://{address}/-/ready"
    with exporter:
        [health] = values(final, "HEALTHCHECK")
        check = json.loads(health[health.index("[") :])
        done = subprocess.run(
            [part.replace("127.0.0.1:9917", address) for part in check],
            env=image.environment,
            check=False,
        )

        assert done.returncode == 0
        assert b"rankskew_exporter_build_info{" in get(f"http://{address}/metrics")


def test_image_brings_the_rules(image: Image, tmp_path: Path) -> None:
    """`rankskew files` works from the image, so the rules can be taken out of it."""
    run(f"rankskew files {tmp_path / 'out'}", tmp_path, image.environment)

    assert list((tmp_path / "out" / "alerts" / "rules").glob("*.yaml"))


def test_image_does_not_run_as_root() -> None:
    """The user is a number other than 0, which Kubernetes' runAsNonRoot can check."""
    _, final = stages()
    [user] = values(final, "USER")

    assert int(user) > 0


def test_image_runs_a_supported_python() -> None:
    """Both stages use one Python, and one that the package allows."""
    bases = {values(stage, "FROM")[0].split()[0] for stage in stages()}
    [base] = bases
    version = re.fullmatch(r"python:3\.(\d+)-slim-\w+", base)

    assert version is not None
    assert int(version[1]) >= 11


def test_pinned_packages_are_those_of_the_extra() -> None:
    """Each package that the exporter asks for is pinned, to a version that it allows."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = dict(re.findall(r"^(\S+)==(\S+) ", (ROOT / PINNED).read_text(), re.MULTILINE))

    for wanted in map(Requirement, extra["exporter"]):
        assert wanted.specifier.contains(pinned[wanted.name]), f"make lock: {wanted}"
