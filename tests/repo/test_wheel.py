"""The installed wheel, not only the checkout, has everything that it needs."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from demo.process import Process, free_port, get

ROOT = Path(__file__).parents[2]
SHIPPED = {
    "alerts/rules": sorted((ROOT / "alerts" / "rules").glob("*.yaml")),
    "alerts/runbooks": sorted((ROOT / "alerts" / "runbooks").glob("*.md")),
    "alerts": [ROOT / "alerts" / "alertmanager.yaml", ROOT / "alerts" / "notifications.tmpl"],
    "dashboards": sorted((ROOT / "dashboards" / "json").glob("*.json")),
}


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run *command* away from the checkout, without its import path, with *more* variables."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def install(directory: Path, *what: str) -> Path:
    """Make an empty environment in *directory*, install *what*; return its bin folder."""
    venv.create(directory, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python")]
    done = run(*pip, "install", "--quiet", *what, cwd=directory)
    assert done.returncode == 0, done.stderr
    return directory / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    done = run(sys.executable, "-m", "build", "--wheel", "--outdir", directory, ROOT, cwd=directory)
    assert done.returncode == 0, done.stderr
    return next(directory.glob("*.whl"))


IS_PURE = (
    "from rank_probe import ledger, tape;"
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


def test_wheel_without_a_compiler_works(tmp_path: Path) -> None:
    """It is pure, installs anywhere, and uses the tape in Python."""
    build = (sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT)
    built = run(*build, cwd=tmp_path, CC="false", LDSHARED="false")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    done = run(
        install(tmp_path / "venv", "--no-index", str(wheel)) / "python",
        "-c",
        IS_PURE,
        cwd=tmp_path,
    )

    assert wheel.name.endswith("-py3-none-any.whl")
    assert done.stdout.split() == ["True", "True"], done.stderr


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the base install and nothing else, not even pip; its bin folder."""
    directory = tmp_path_factory.mktemp("base")
    return install(directory, "--no-index", str(wheel))


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the exporter extra; its bin folder."""
    directory = tmp_path_factory.mktemp("full")
    return install(directory, f"{wheel}[exporter]")


def test_base_install_imports_with_nothing_there(base: Path, tmp_path: Path) -> None:
    """`import rank_probe` needs neither torch nor any other package."""
    program = "import rank_probe, sys; print(rank_probe.__file__, 'torch' in sys.modules)"
    done = run(base / "python", "-c", program, cwd=tmp_path)

    assert done.stderr == ""
    assert "site-packages" in done.stdout
    assert done.stdout.strip().endswith("False")


def test_base_install_runs_a_script(base: Path, tmp_path: Path) -> None:
    """`rank-probe run` works without torch: the script just runs."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = run(base / "rank-probe", "run", "train.py", cwd=tmp_path)

    assert done.stdout == "trained\n"
    assert done.returncode == 0


def test_operator_command_without_its_extra_says_what_to_install(
    base: Path, tmp_path: Path
) -> None:
    """`rankskew` in the base install is one line and exit 2, not a traceback."""
    done = run(base / "rankskew", "exporter", cwd=tmp_path)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "rankskew[exporter]" in done.stderr


def test_installed_exporter_serves_metrics_and_page(full: Path, tmp_path: Path) -> None:
    """`rankskew exporter` from the wheel answers a scrape, and has its page with it."""
    address = f"127.0.0.1:{free_port()}"
    command = [str(full / "rankskew"), "exporter", f"--web.listen-address={address}"]
    command.append(f"--ingest.socket={tmp_path / 'exporter.sock'}")
    command.append(f"--operator.socket={tmp_path / 'operator.sock'}")
    exporter = Process("the installed exporter", command, tmp_path / "log")
    exporter.ready_url = f"http://{address}/-/ready"
    with exporter:
        metrics = get(f"http://{address}/metrics").decode()
        page = get(f"http://{address}/").decode()

    assert "\nrankskew_gpus_visible " in metrics
    assert "rankskew_exporter_build_info" in metrics
    assert "<html" in page


def test_installed_files_are_the_checkouts(full: Path, tmp_path: Path) -> None:
    """`rankskew files` writes every rule, runbook and dashboard that the checkout has."""
    done = run(full / "rankskew", "files", tmp_path / "files", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    for place, sources in SHIPPED.items():
        assert sources, f"the checkout has nothing in {place}"
        for source in sources:
            written = tmp_path / "files" / place / source.name
            assert written.read_bytes() == source.read_bytes()
