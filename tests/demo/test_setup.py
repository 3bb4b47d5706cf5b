"""scripts/setup.sh: quick when done, clear when something may not be installed."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HASHED = (
    "pyproject.toml",
    "hatch_build.py",
    "rank_probe/_fold.c",
    "rank_probe/_tape.c",
    "demo/requirements.txt",
    "tests/requirements.txt",
    "scripts/setup.sh",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout whose virtual environment is up to date in both modes."""
    content = f"{tmp_path}\n".encode()
    for name in HASHED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        content += (ROOT / name).read_bytes()
    (tmp_path / ".venv").mkdir()
    for mode in ("demo", "test"):
        stamp = f"{hashlib.sha256(content).hexdigest()}  -\n"
        (tmp_path / ".venv" / f".setup-{mode}").write_text(stamp)
    return tmp_path


def setup(
    checkout: Path, mode: str, programs: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run it where only *programs* and the shell's own tools are installed."""
    path = checkout / "bin"
    path.mkdir()
    for tool in ("bash", "env", "dirname", "cat", "sha256sum", "xargs", "grep", "echo", "id"):
        found = shutil.which(tool)
        assert found is not None
        (path / tool).symlink_to(found)
    for program in programs:
        (path / program).symlink_to("/bin/true")
    return subprocess.run(
        [checkout / "scripts" / "setup.sh", mode],
        env={"PATH": str(path), "SETUP_INSTALL": "0", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
    )


STACK = ("prometheus", "promtool", "alertmanager")
TOOLS = ("gcc", "systemd-analyze")
INSTALL = "setup:     sudo apt-get install --no-install-recommends"


@pytest.mark.parametrize(
    ("mode", "programs", "status", "last"),
    [
        ("test", (*STACK, *TOOLS), 0, ""),
        # The demo goes on without what cannot be installed; the tests need all of it.
        ("demo", (), 0, f"{INSTALL} prometheus prometheus-alertmanager"),
        ("test", STACK, 1, f"{INSTALL} systemd gcc libc6-dev"),
        ("everything", (), 2, "setup: expected demo, test or nightly, got 'everything'"),
    ],
    ids=["nothing to do", "demo", "tests", "unknown mode"],
)
def test_what_is_missing_is_named(
    checkout: Path, mode: str, programs: tuple[str, ...], status: int, last: str
) -> None:
    """In the last line, with the command to run; with everything there it is silent."""
    done = setup(checkout, mode, programs)

    assert (done.returncode, done.stdout) == (status, "")
    assert (done.stderr.splitlines() or [""])[-1] == last
