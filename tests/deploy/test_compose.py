"""The page about compose, typed in as it stands, until a planted straggler is paged."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.debian import ROOT
from tests.deploy.pages import FENCE

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1200)]

SOCKETS: Final = Path("/run/rankskew")
TEN_MINUTES: Final = 600
LOOKS: Final = "docker compose logs pager\n"
# This is root already. A reader waits a minute or two; a test asks until the page is printed.
BEGIN: Final = """
set -ex
sudo() { "$@"; }
until_it_says() {
  local word=$1; shift
  until "$@" | grep -A 2 -- "$word"; do sleep 1; done
}
"""
REMOVE: Final = "docker compose --profile demo down --volumes"


def why_not() -> str | None:
    """Return why the page cannot be typed here; None if it can."""
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return f"{' '.join(command)} fails: no Docker engine with Compose"
    return f"{SOCKETS} is somebody's" if SOCKETS.exists() else None


def test_page_works_as_it_is_written() -> None:
    """Ten minutes after the first command at the latest, the right rank's page is printed."""
    if reason := why_not():
        pytest.skip(reason)
    page = ROOT / "deploy" / "compose" / "README.md"
    lines = "".join(FENCE.findall(page.read_text()))
    assert lines.count(LOOKS) == 1
    typed = BEGIN + lines.replace(LOOKS, f"until_it_says 'PAGE: RankskewStraggler' {LOOKS}")
    try:
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TEN_MINUTES,
        )
    finally:
        subprocess.run(["bash", "-c", REMOVE], cwd=page.parent, check=False)

    assert done.returncode == 0, done.stdout
    assert "Rank 2 of job demo is slow loading data" in done.stdout
