"""`make release` makes every file of a release, the same each time, and what is in it works.

A release is built at night; what a change may forget to pack shows at once.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path
from typing import Final

import pytest

from devstack.process import StackProcess, free_port, get
from exporter.bundle import PLACES
from rank_probe.version import __version__
from rankskew.commands.files import write_files
from tests.deploy.test_kubernetes import HELM, made

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = Path("scripts", "release.py")
ARCHIVE: Final = f"rankskew-{__version__}-files"
# What is in no archive: images are made from a checkout.
NOT_PACKED: Final = {"compose", "image"}
IN_ARCHIVE_ONLY: Final = {"kubernetes", "helm"}
PACKAGES: Final = ("rank_probe", "exporter", "rankskew", "fleet_simulator")
CAN_COMPILE: Final = (
    bool(shutil.which("cc")) and Path(sysconfig.get_path("include"), "Python.h").exists()
)
# Of an installed probe: where it is, whether it has loaded torch, whether tape and ledger are pure.
LOADED: Final = """
import rank_probe, sys
print(rank_probe.__file__, "torch" in sys.modules)
from rank_probe.measure import ledger, tape
print(tape.new_tape is tape.PythonTape, ledger.new_ledger is ledger.PythonLedger)
"""


def in_git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def commit(directory: Path) -> None:
    """Make *directory* a repository with one commit of all that is there."""
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for arguments in (("init", "-q"), ("add", "--all"), (*identity, "commit", "-qm", "all")):
        subprocess.run(["git", "-C", str(directory), *arguments], check=True)


def contents(tree: Path) -> dict[str, bytes]:
    """Return each file of *tree*, by its path there."""
    files = (path for path in tree.glob("**/*") if path.is_file())
    return {str(path.relative_to(tree)): path.read_bytes() for path in files}


def typed(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run *command* away from the checkout, without its import path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def test_every_source_and_deployment_is_packed() -> None:
    """A wheel leaves out what git ignores, and each directory of deploy/ has one way out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]
    sources = [f"{package}/**.py" for package in PACKAGES]
    in_wheel = {name.removeprefix("deploy/") for name in PLACES if name.startswith("deploy/")}
    found = {path.name for path in (ROOT / "deploy").iterdir()}

    assert {f"/{name}" for name in (*PACKAGES, *PLACES.values())} == {*packed}
    assert in_git("ls-files", "--others", "--ignored", "--exclude-standard", *sources) == ""
    assert found <= in_wheel | IN_ARCHIVE_ONLY | NOT_PACKED
    assert not in_wheel & IN_ARCHIVE_ONLY


def test_release_that_is_not_ready_is_refused(tmp_path: Path) -> None:
    """No file is made of a version without its section, or of work that is not committed."""
    for path in (SCRIPT, Path("rank_probe", "version.py")):
        (tmp_path / path).parent.mkdir()
        shutil.copy(ROOT / path, tmp_path / path)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(f"## {__version__}0 - 2026-01-01\n")
    commit(tmp_path)
    for reason in (
        f"CHANGELOG.md has no section for version {__version__}",
        "tracked files have changed since the last commit",
    ):
        done = typed(sys.executable, tmp_path / SCRIPT, tmp_path / "dist", cwd=tmp_path)
        changelog.write_text(f"## {__version__} - 2026-01-01\n")

        assert done.returncode == 1
        assert done.stderr.startswith(f"release: {reason}")
        assert done.stderr.endswith("RELEASE=dev\n")
        assert not (tmp_path / "dist").exists()


# ---- A release that is built ---------------------------------------------------------------------


def build(checkout: Path, directory: Path, umask: int = -1, **more: str) -> Path:
    """Return *directory*, filled as `make release RELEASE=dev` does in *checkout*."""
    command = [sys.executable, str(checkout / SCRIPT), "--dev", str(directory)]
    environment = os.environ | more
    done = subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release."""
    return build(ROOT, tmp_path_factory.mktemp("release") / "dist")


def new_environment(directory: Path) -> Path:
    """Return the Python of a new environment, which has no pip."""
    venv.create(directory / "venv", with_pip=False)
    return directory / "venv" / "bin" / "python"


def pip(python: Path, *arguments: str, command: str = "install --quiet --no-compile") -> None:
    """Run pip's *command* for an environment that has none."""
    run = [sys.executable, "-m", "pip", "--python", str(python), *command.split(), *arguments]
    done = typed(*run, cwd=python.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_release_has_all_files_and_their_sums(released: Path, tmp_path: Path) -> None:
    """Two wheels, the sdist, the archive and SHA256SUMS.

    Nobody needs pip to get the rules, nobody a checkout to deploy, and nobody Helm.
    """
    write_files(tmp_path / "files")
    with tarfile.open(released / f"{ARCHIVE}.tar.gz") as opened:
        opened.extractall(tmp_path, filter="data")
    archive = tmp_path / ARCHIVE
    deployments = {path.name for path in (ROOT / "deploy").iterdir()}
    names = {path.name for path in released.iterdir()}
    wheels = {name for name in names if name.endswith(".whl")}

    assert f"rankskew-{__version__}-py3-none-any.whl" in wheels
    assert len(wheels) == 1 + CAN_COMPILE  # The other is for this platform.
    assert names - wheels == {f"rankskew-{__version__}.tar.gz", f"{ARCHIVE}.tar.gz", "SHA256SUMS"}
    checked = typed("sha256sum", "--check", "SHA256SUMS", cwd=released).stdout.splitlines()
    assert {*checked} == {f"{name}: OK" for name in names - {"SHA256SUMS"}}
    assert contents(tmp_path / "files").items() <= contents(archive).items()
    assert {path.name for path in (archive / "deploy").iterdir()} == deployments - NOT_PACKED
    rendered = {str(path): text.encode() for path, text in made().items()}
    assert contents(archive / "deploy" / "kubernetes") == rendered


@pytest.mark.nightly
def test_two_builds_are_equal(released: Path, tmp_path: Path) -> None:
    """In another directory, time zone, locale and umask, later, the same bytes come out."""
    listed = in_git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    other = tmp_path / "a checkout elsewhere"
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, other / name, follow_symlinks=False)
    commit(other)
    different = {
        "SOURCE_DATE_EPOCH": in_git("log", "-1", "--format=%ct"),
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "C",
        "PYTHONHASHSEED": "7",
        "PATH": f"{HELM.parent}:{os.environ['PATH']}",
    }
    again = build(other, tmp_path / "dist", 0o077, **different)

    assert (again / "SHA256SUMS").read_text() == (released / "SHA256SUMS").read_text()


@pytest.mark.nightly
@pytest.mark.parametrize("is_pure", [True, False], ids=["pure", "native"])
def test_wheel_can_be_installed_and_removed(released: Path, tmp_path: Path, is_pure: bool) -> None:
    """The probe works without torch or any other package, and in C where there is a compiler.

    What it lacks for an operator's command is one line, not a traceback. A training image is after
    `pip uninstall` what it was before, jobs or not.
    """
    if not is_pure and not CAN_COMPILE:
        pytest.skip("no C compiler, or no headers of Python: the only wheel is pure")
    [wheel] = (p for p in released.glob("*.whl") if p.name.endswith("-any.whl") == is_pure)
    python = new_environment(tmp_path)
    before = contents(python.parents[1])
    pip(python, "--no-index", str(wheel))

    done = typed(python, "-c", LOADED, cwd=tmp_path)
    assert done.stderr == ""
    assert "site-packages" in done.stdout
    assert done.stdout.split()[1:] == ["False", str(is_pure), str(is_pure)]
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = typed(python.with_name("rank-probe"), "run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    done = typed(python.with_name("rankskew"), "exporter", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "rankskew[exporter]" in done.stderr

    pip(python, "rankskew", command="uninstall --yes")
    assert contents(python.parents[1]) == before
    assert {path.name for path in tmp_path.iterdir()} == {"venv", "train.py"}


@pytest.mark.nightly
def test_installed_exporter_serves(released: Path, tmp_path: Path) -> None:
    """From the wheel alone it answers a scrape, has its page and the operator's files with it.

    The exporter's extra brings nothing for people, and `rankskew top` says what does.
    """
    python = new_environment(tmp_path)
    rankskew = python.with_name("rankskew")
    pip(python, "--no-index", "--find-links", str(released), "rankskew")
    pip(python, "rankskew[exporter]")
    address = f"127.0.0.1:{free_port()}"
    command = [str(rankskew), "exporter", f"--web.listen-address={address}"]
    command += [f"--{of}.socket={tmp_path / of}" for of in ("ingest", "operator")]
    exporter = StackProcess("the installed exporter", command, tmp_path / "log")
    exporter.ready_url = f"http://{address}/-/ready"
    with exporter:
        metrics = get(f"http://{address}/metrics").decode()
        page = get(f"http://{address}/").decode()

    assert "\nrankskew_gpus_visible " in metrics
    assert "<html" in page
    done = typed(rankskew, "files", tmp_path / "installed", cwd=tmp_path)
    write_files(tmp_path / "checkout")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "installed") == contents(tmp_path / "checkout")
    done = typed(rankskew, "top", "--once", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("run pip install 'rankskew[cli]'")
