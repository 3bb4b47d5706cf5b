"""The installed wheel, not only the checkout, has everything that it needs."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from devstack.process import StackProcess, free_port, get
from rankskew.commands.files import write_files

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run *command* away from the checkout, without its import path, with *more* variables."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def install(directory: Path, *commands: Sequence[str]) -> Path:
    """Make an empty environment in *directory*, install what *commands* name; return its bin."""
    venv.create(directory, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    for what in commands:
        done = run(*pip, "install", "--quiet", *what, cwd=directory)
        assert done.returncode == 0, done.stderr
    return directory / "bin"


@pytest.fixture(scope="module")
def wheel(released: Path) -> Path:
    """The wheel that pip prefers here: the one for this platform, if there is one."""
    return min(released.glob("*.whl"), key=lambda path: path.name.endswith("-none-any.whl"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the base install and nothing else, not even pip; its bin folder."""
    return install(tmp_path_factory.mktemp("base"), ["--no-index", str(wheel)])


@pytest.fixture(scope="module")
def full(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the exporter extra, from the wheel alone; its bin folder."""
    first, then = f"--no-index --find-links {released} rankskew", "'rankskew[exporter]'"
    return install(tmp_path_factory.mktemp("full"), *map(shlex.split, (first, then)))


IS_PURE = (
    "from rank_probe.measure import ledger, tape;"
    "print(tape.new_tape is tape.PythonTape, ledger.new_ledger is ledger.PythonLedger)"
)


def test_wheel_has_the_compiled_modules(wheel: Path, base: Path, tmp_path: Path) -> None:
    """Where there is a compiler, the wheel is for this platform and its hooks are in C."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if shutil.which("cc") is None or not headers.exists():
        pytest.skip("no C compiler, or no headers of Python: the wheel is pure")
    done = run(base / "python", "-c", IS_PURE, cwd=tmp_path)

    assert not wheel.name.endswith("-none-any.whl")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_pure_wheel_works_without_a_compiler(released: Path, tmp_path: Path) -> None:
    """It installs anywhere, and uses the tape in Python."""
    [wheel] = released.glob("*-py3-none-any.whl")
    done = run(
        install(tmp_path / "venv", ["--no-index", str(wheel)]) / "python",
        "-c",
        IS_PURE,
        cwd=tmp_path,
    )

    assert done.stdout.split() == ["True", "True"], done.stderr


def test_base_install_needs_nothing(base: Path, tmp_path: Path) -> None:
    """`import rank_probe` and `rank-probe run` work without torch or any other package.

    An operator's command is one line that says what to install, not a traceback.
    """
    program = "import rank_probe, sys; print(rank_probe.__file__, 'torch' in sys.modules)"
    done = run(base / "python", "-c", program, cwd=tmp_path)
    assert done.stderr == ""
    assert "site-packages" in done.stdout
    assert done.stdout.strip().endswith("False")

    (tmp_path / "train.py").write_text("print('trained')\n")
    done = run(base / "rank-probe", "run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")

    done = run(base / "rankskew", "exporter", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "rankskew[exporter]" in done.stderr


def test_node_is_told_what_its_terminal_lacks(full: Path, tmp_path: Path) -> None:
    """The exporter's extra brings nothing for people, and `rankskew top` says what does."""
    done = run(full / "rankskew", "top", "--once", cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("run pip install 'rankskew[cli]'")


def test_installed_exporter_serves_metrics_and_page(full: Path, tmp_path: Path) -> None:
    """`rankskew exporter` from the wheel answers a scrape, and has its page with it."""
    address = f"127.0.0.1:{free_port()}"
    command = [str(full / "rankskew"), "exporter", f"--web.listen-address={address}"]
    command.append(f"--ingest.socket={tmp_path / 'exporter.sock'}")
    command.append(f"--operator.socket={tmp_path / 'operator.sock'}")
    exporter = StackProcess("the installed exporter", command, tmp_path / "log")
    exporter.ready_url = f"http://{address}/-/ready"
    with exporter:
        metrics = get(f"http://{address}/metrics").decode()
        page = get(f"http://{address}/").decode()

    assert "\nrankskew_gpus_visible " in metrics
    assert "rankskew_exporter_build_info" in metrics
    assert "<html" in page


def test_installed_files_are_the_checkouts(full: Path, tmp_path: Path) -> None:
    """`rankskew files` writes from the wheel what it writes from the checkout, and nothing else."""
    done = run(full / "rankskew", "files", tmp_path / "installed", cwd=tmp_path)
    write_files(tmp_path / "checkout")

    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "installed") == contents(tmp_path / "checkout")


def contents(tree: Path) -> dict[str, bytes]:
    """Return each file of *tree*, by its path there."""
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in tree.glob("**/*")
        if path.is_file()
    }


def test_installed_check_runs(full: Path, tmp_path: Path) -> None:
    """`rank-probe check` of the wheel says that no exporter listens, in a sentence."""
    socket = f"unix:{tmp_path / 'exporter.sock'}"
    done = run(full / "rank-probe", "check", cwd=tmp_path, RANKSKEW_EXPORTER=socket)

    assert done.returncode == 1
    assert f"{tmp_path / 'exporter.sock'}" in done.stdout.splitlines()[-1]


def test_uninstalled_package_leaves_nothing(released: Path, tmp_path: Path) -> None:
    """A training image is after `pip uninstall` what it was before, jobs or not."""
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(python.parents[1], with_pip=False)
    before = contents(python.parents[1])
    [wheel] = released.glob("*-py3-none-any.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    (tmp_path / "train.py").write_text("print('trained')\n")
    for command in (
        [*pip, "install", "--no-index", str(wheel)],
        [python.with_name("rank-probe"), "run", "train.py"],
        [*pip, "uninstall", "--yes", "rankskew"],
    ):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    assert contents(python.parents[1]) == before
    assert {path.name for path in tmp_path.iterdir()} == {"venv", "train.py"}
