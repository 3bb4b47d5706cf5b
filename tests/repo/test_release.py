"""`make release` makes every file of a release, the same each time, and only when it is ready."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from exporter.bundle import PLACES
from rank_probe.version import __version__
from rankskew.commands.files import write_files
from tests.deploy.kubernetes import HELM, KUBECTL, kustomized_text, run

ROOT = Path(__file__).parents[2]
SCRIPT = Path("scripts", "release.py")
NEEDED = (SCRIPT, Path("rank_probe", "version.py"), Path("CHANGELOG.md"))
# What is in no archive: the image is made from a checkout.
NOT_PACKED = {"image"}
PACKAGES = ("rank_probe", "exporter", "rankskew", "fleet_simulator")
IN_ARCHIVE_ONLY = {"compose", "kubernetes", "helm"}
CAN_COMPILE = bool(shutil.which("cc")) and Path(sysconfig.get_path("include"), "Python.h").exists()


def git(directory: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    command = ["git", "-C", str(directory), *identity, *arguments]
    subprocess.run(command, check=True, capture_output=True)


def commit(directory: Path) -> None:
    """Make *directory* a repository with one commit of all that is there."""
    git(directory, "init", "--quiet")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message=all")


def archive(released: Path) -> Path:
    return released / f"rankskew-{__version__}-files.tar.gz"


def test_release_has_all_files_and_their_sums(released: Path) -> None:
    """A wheel for anybody and one for this platform, the sdist, the archive and SHA256SUMS."""
    names = {path.name for path in released.iterdir()}
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_")
    native = {f"rankskew-{__version__}-{tag}-{tag}-{platform}.whl"} if CAN_COMPILE else set()
    lines = (released / "SHA256SUMS").read_text().splitlines()

    assert names == native | {
        f"rankskew-{__version__}-py3-none-any.whl",
        f"rankskew-{__version__}.tar.gz",
        archive(released).name,
        "SHA256SUMS",
    }
    assert [line.split() for line in lines] == [
        [hashlib.sha256((released / name).read_bytes()).hexdigest(), name]
        for name in sorted(names - {"SHA256SUMS"})
    ]


def test_archive_has_what_the_command_writes_and_the_deployments(
    released: Path, tmp_path: Path
) -> None:
    """Nobody needs pip to get the rules, and nobody a checkout to deploy.

    `kubectl apply -k deploy/kubernetes` works on the archive as it was unpacked.
    """
    write_files(tmp_path / "files")
    with tarfile.open(archive(released)) as opened:
        opened.extractall(tmp_path, filter="data")
    packed = tmp_path / archive(released).name.removesuffix(".tar.gz")

    for path in (tmp_path / "files").glob("**/*"):
        copy = packed / path.relative_to(tmp_path / "files")
        assert path.is_dir() or copy.read_bytes() == path.read_bytes()
    assert {path.name for path in (packed / "deploy").iterdir()} == {
        path.name for path in (ROOT / "deploy").iterdir() if path.name not in NOT_PACKED
    }
    assert run(KUBECTL, "kustomize", packed / "deploy" / "kubernetes") == kustomized_text()


def test_every_deployment_is_in_the_wheel_or_the_archive() -> None:
    """A new directory of deploy/ goes into PLACES of exporter/bundle.py or into the release."""
    in_wheel = {name.removeprefix("deploy/") for name in PLACES if name.startswith("deploy/")}
    found = {path.name for path in (ROOT / "deploy").iterdir()}

    assert found <= in_wheel | IN_ARCHIVE_ONLY | NOT_PACKED
    assert not in_wheel & IN_ARCHIVE_ONLY


def test_no_source_is_ignored_by_git() -> None:
    """A wheel leaves out what git ignores, however well it works in a checkout."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--others", "--ignored", "--exclude-standard"]
        + [f"{package}/**.py" for package in PACKAGES],
        check=True,
        capture_output=True,
        text=True,
    )
    assert listed.stdout == ""


@pytest.mark.parametrize(
    ("heading", "edit", "sentence"),
    [
        ("Unreleased", "", "CHANGELOG.md has no section for version {}"),
        ("{}0 - 2026-01-01", "", "CHANGELOG.md has no section for version {}"),
        ("{} - 2026-01-01", "more", "tracked files have changed since the last commit"),
    ],
)
def test_release_that_is_not_ready_is_refused(
    tmp_path: Path, heading: str, edit: str, sentence: str
) -> None:
    """No file is made of a version without its section, or of work that is not committed."""
    for path in NEEDED:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "CHANGELOG.md").write_text(f"## {heading.format(__version__)}\n")
    commit(tmp_path)
    if edit:
        (tmp_path / "CHANGELOG.md").write_text(f"## {__version__}\n{edit}")
    command = [sys.executable, str(tmp_path / SCRIPT), str(tmp_path / "dist")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith(f"release: {sentence.format(__version__)}")
    assert done.stderr.endswith("RELEASE=dev\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "dist").exists()


@pytest.mark.e2e
def test_two_builds_are_equal(released: Path, tmp_path: Path) -> None:
    """In another directory, time zone, locale and umask, later, the same bytes come out."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    other = tmp_path / "a checkout elsewhere"
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, other / name, follow_symlinks=False)
    commit(other)
    epoch = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    different = {
        "SOURCE_DATE_EPOCH": subprocess.run(epoch, check=True, capture_output=True).stdout.decode(),
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "PATH": f"{HELM.parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, str(other / SCRIPT), "--dev", str(tmp_path / "dist")],
        capture_output=True,
        text=True,
        env=os.environ | different,
        umask=0o077,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    sums = (tmp_path / "dist" / "SHA256SUMS").read_text()
    assert sums == (released / "SHA256SUMS").read_text()
