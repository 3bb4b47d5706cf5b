"""The release files, made once for all tests that install or read them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that `make release RELEASE=dev` fills."""
    directory = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, str(ROOT / "scripts" / "release.py"), "--dev", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory
