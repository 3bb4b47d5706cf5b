"""The probe on other releases of torch and Python, each in an environment of its own.

    make test-torch TORCH="2.4 2.8/3.12"

Each release, on the Python behind its slash or on this one, gets an environment below TORCH_FOLDER,
which is kept for the next time.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from benchmarks.report import Row, last, write
from devstack.parts import ROOT
from generators.markdown import table

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(4 * 3600)]

RELEASES: Final = os.environ.get("TORCH", "").split()
FOLDER: Final = Path(os.environ.get("TORCH_FOLDER") or ROOT / ".torch").absolute()
WAYS, JOIN = "ways right", "the join speaks"
TESTING: Final = ("numpy", "psutil", "prometheus-client", "pytest", "pytest-timeout", "hypothesis")
BUILDING: Final = ("hatchling>=1.26", "setuptools>=77")
# Compiles the probe's modules for the environment's Python, beside their sources.
COMPILE: Final = """
import pathlib, tempfile
from hatch_build import compile_modules, place
with tempfile.TemporaryDirectory() as folder:
    for built in compile_modules(pathlib.Path.cwd(), pathlib.Path(folder)):
        place(built, pathlib.Path("rank_probe"))
"""
TESTS: Final = [f"tests/rank_probe/{name}" for name in ("torch_hooks", "measure", "join")]


def minor(version: str) -> tuple[int, int]:
    """Return 2 and 8 for a version such as 2.8.0+cu128."""
    major, second = version.split(".")[:2]
    return int(major), int(second)


def python_of(torch: str, python: str) -> Path:
    """Return the Python of an environment with that *torch*, made if it is not there or is old.

    A framework that cannot be installed beside this torch is left out, and the run says so.
    """
    environment = FOLDER / "-".join(filter(None, (torch, python)))
    inside, stamp = environment / "bin" / "python", environment / "installed"
    frameworks = [
        # The newest release that takes a torch this old.
        "transformers<5" if line.startswith("transformers") and minor(torch) < (2, 6) else line
        for line in (ROOT / "tests" / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    wanted = "\n".join((*TESTING, *BUILDING, *frameworks))
    if not stamp.exists() or stamp.read_text() != wanted:
        interpreter = f"python{python}" if python else sys.executable
        subprocess.run([interpreter, "-m", "venv", str(environment)], check=True)
        install = [str(inside), "-m", "pip", "install", "-q", f"torch=={torch}.*"]
        subprocess.run([*install, *TESTING, *BUILDING], check=True)
        for framework in frameworks:
            # It builds against torch, which pip hides from a build by default.
            own = ["--no-build-isolation"] if framework.startswith("deepspeed") else []
            if subprocess.run([*install, framework, *own], check=False).returncode:
                print(f"torch {torch} runs without {framework}")
        stamp.write_text(wanted)
    subprocess.run([str(inside), "-c", COMPILE], cwd=ROOT, check=True)
    return inside


@pytest.mark.parametrize("release", RELEASES)
def test_release(release: str, tmp_path: Path) -> None:
    """The ways to train, the join and the probe's own tests pass there."""
    torch, _, python = release.partition("/")
    inside, report = str(python_of(torch, python)), tmp_path / "report.xml"
    versions = "import platform, torch; print(torch.__version__, platform.python_version())"
    named = subprocess.run([inside, "-c", versions], capture_output=True, text=True, check=True)
    command = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    # What is deprecated in this torch is no failure of the probe.
    command += ["-o", "filterwarnings=default", "-m", "not (jobs or e2e)", *TESTS]
    command += ["tests/nightly/test_ways.py", *os.environ.get("TORCH_ARGUMENTS", "").split()]
    failed = subprocess.run(command, cwd=ROOT, check=False).returncode
    made = row_of(report, *named.stdout.split())
    others = [row for row in last("torch_versions") if key(row) != key(made)]
    rows = sorted([*others, made], key=lambda row: [minor(part) for part in key(row)])
    write("torch_versions", rows, tables={"torch_versions": table_of})
    assert not failed, made["what differs"]


def key(row: Row) -> tuple[str, str]:
    """Return the release that *row* is about."""
    return row["torch"], row["Python"]


def row_of(report: Path, torch: str, python: str) -> Row:
    """Return the cells for that release: how much passed by kind, and what did not."""
    right: dict[str, list[bool]] = {WAYS: [], JOIN: [], "unit tests": []}
    differs = []
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.attrib["name"]
        way = re.fullmatch(r"test_way\[(.+)\]", name)
        kind = WAYS if way else JOIN if name == "test_join" else "unit tests"
        failure, skip = case.find("failure"), case.find("skipped")
        if skip is None:
            right[kind].append(failure is None)
        said = failure if skip is None else skip
        if said is not None and (failure is not None or kind != "unit tests"):
            differs.append(f"{way[1] if way else name}: {said.attrib['message']}")
    shares = {kind: f"{sum(found)} of {len(found)}" for kind, found in right.items()}
    return {"torch": torch, "Python": python, **shares, "what differs": "; ".join(differs)}


def table_of(result: Row) -> str:
    """Return a row for each release."""
    cells = [tuple(row.values()) for row in result["rows"]]
    cpus = result["machine"]["cpus"]
    return f"On {cpus} CPUs, over gloo.\n\n{table(tuple(result['rows'][0]), cells)}"
