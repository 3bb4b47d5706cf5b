"""A network of booted machines, and the files of one on which the exporter is installed."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.process import wait_for
from tests.deploy import ROOT, blocks
from tests.deploy.machine import Machine, Network, debian, why_not

PAGE = "deploy/systemd/README.md"


@pytest.fixture(scope="session")
def system() -> Path:
    """The root directory of a small Debian with systemd and Slurm."""
    if problem := why_not():
        pytest.skip(problem)
    return debian()


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """The bridge between the machines."""
    with Network() as network:
        yield network


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of this checkout and all that its exporter needs, as an index."""
    folder = tmp_path_factory.mktemp("index")
    python = [sys.executable, "-m"]
    build = [*python, "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    download = [*python, "pip", "download", "-q", "-d", str(folder), f"{wheel}[exporter,cli]"]
    subprocess.run(download, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="session")
def installed(
    system: Path, network: Network, index: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The layer of files that the page's install commands leave on a machine."""
    directory = tmp_path_factory.mktemp("installed")
    machine = Machine(directory, "install", [system], network, 0, shared=[index])
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with machine:
        install, ask = blocks(PAGE, "Install")
        machine.run(install, environment=pip, seconds=300)
        # The exporter looks for the driver only after its first answer.
        assert wait_for(lambda: "rankskew_gpus_visible 0" in machine.run(ask) or None, 60)
    yield machine.changes
    shutil.rmtree(directory)
