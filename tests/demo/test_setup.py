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


def test_nothing_to_do_says_nothing(checkout: Path) -> None:
    """With everything there it does nothing and is silent."""
    stack = ("prometheus", "promtool", "alertmanager", "victoria-metrics", "vmalert")
    done = setup(checkout, "test", (*stack, "gcc", "systemd-analyze"))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_demo_goes_on_without_prometheus(checkout: Path) -> None:
    """What the demo cannot install it names, with the command to run, and goes on."""
    done = setup(checkout, "demo")

    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == (
        "setup:     sudo apt-get install --no-install-recommends prometheus prometheus-alertmanager"
    )


def test_tests_do_not_go_on_without_it(checkout: Path) -> None:
    """The tests need every program: a missing one ends the set-up, named."""
    done = setup(checkout, "test", ("prometheus", "promtool", "prometheus-alertmanager"))

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "install --no-install-recommends victoria-metrics systemd gcc libc6-dev"
    )


def test_unknown_mode_is_refused(checkout: Path) -> None:
    """A wrong argument exits 2 in one line."""
    done = setup(checkout, "everything")

    assert done.returncode == 2
    assert done.stderr == "setup: expected demo, test or deploy, got 'everything'\n"
