"""`make demo`: its set-up, when it takes an answer as the verdict, and its end."""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo.__main__ import HEALTHY_SECONDS, LATE_SECONDS, PageWatch, Verdict
from devstack.process import MARK, wait_for
from tests.test_devstack import runs

ROOT = Path(__file__).parents[1]

# ---- scripts/setup.sh: quick when done, clear when something may not be installed ----------------

HASHED = (
    "pyproject.toml",
    "hatch_build.py",
    "rank_probe/_device.c",
    "rank_probe/_fold.c",
    "rank_probe/_tape.c",
    "demo/requirements.txt",
    "tests/requirements.txt",
    "scripts/setup.sh",
)
TOOLS_OF_SHELL = ("bash", "env", "dirname", "cat", "sha256sum", "xargs", "grep", "echo", "id")
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
    ],
    ids=["nothing to do", "demo", "tests"],
)
def test_what_is_missing_is_named(
    tmp_path: Path, mode: str, programs: tuple[str, ...], status: int, last: str
) -> None:
    """In the last line, with the command to run; with everything there it is silent.

    The virtual environment is up to date; only *programs* and the shell's own tools are there.
    """
    content = f"{tmp_path}\n".encode()
    for name in HASHED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        content += (ROOT / name).read_bytes()
    (tmp_path / ".venv").mkdir()
    for each in ("demo", "test"):
        stamp = f"{hashlib.sha256(content).hexdigest()}  -\n"
        (tmp_path / ".venv" / f".setup-{each}").write_text(stamp)
    path = tmp_path / "bin"
    path.mkdir()
    for program in (*TOOLS_OF_SHELL, *programs):
        found = shutil.which(program) if program in TOOLS_OF_SHELL else "/bin/true"
        assert found is not None
        (path / program).symlink_to(found)
    done = subprocess.run(
        [tmp_path / "scripts" / "setup.sh", mode],
        env={"PATH": str(path), "SETUP_INSTALL": "0", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (status, "")
    assert (done.stderr.splitlines() or [""])[-1] == last


# ---- The verdict ---------------------------------------------------------------------------------

STARTED = 990.0


class Exporter:
    """Says of the job what the test sets."""

    url = "http://127.0.0.1"

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        return self.job


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the demo's clock, for the test to turn."""
    seconds = [1000.0]
    monkeypatch.setattr("demo.__main__.time.monotonic", lambda: seconds[0])
    return seconds


def line(watch: PageWatch) -> str:
    """Return the last line of the demo."""
    verdict = watch.verdict(STARTED)
    assert verdict is not None
    return verdict.line()


def live(state: str, *ranks: int) -> dict[str, Any]:
    """Return the page's data about a job whose *ranks* are late in data."""
    late = [{"rank": rank, "stage": "data", "gpus_lost": 0.964} for rank in ranks]
    return {"verdict": {"state": state, "late": late}}


def assert_open(watch: PageWatch, now: list[float], passes: float) -> None:
    """Have no verdict before and after so many seconds."""
    assert watch.verdict(STARTED) is None
    now[0] += passes
    assert watch.verdict(STARTED) is None


def test_page_is_believed_once_it_lasts(now: list[float]) -> None:
    """A rank that stays named is the verdict, with the page's own cost; another starts it anew.

    Health takes longer: a doubt starts it anew, a rank too mild to wake anybody does not.
    """
    exporter: Any = Exporter()
    watch = PageWatch(exporter)
    assert watch.verdict(STARTED) is None  # The job is not known yet.
    for rank in (1, 2):
        exporter.job = live("straggler", rank)
        assert_open(watch, now, LATE_SECONDS - 1)
    now[0] += 1
    assert line(watch) == (
        "verdict: job=demo rank=2 stage=data gpus_lost=0.96 alert=none(page) after=19s"
    )

    for state, passes in (("healthy", HEALTHY_SECONDS - 1), ("not_judgeable", 2), ("healthy", 0)):
        exporter.job = live(state, 2)
        assert_open(watch, now, passes)
    now[0] += HEALTHY_SECONDS
    assert "no straggler gpus_lost=0.96 judged=60s" in line(watch)


def test_wrong_verdict_is_told() -> None:
    """A verdict that is not what was planted is said to be wrong."""
    named = Verdict(rank="2", stage="data", gpus_lost=1.0, alert="page", after_seconds=30)
    nobody = Verdict(gpus_lost=0.0, alert="page", judged_seconds=90, after_seconds=120)

    assert named.what_is_wrong("data") is None
    wrong = "page names rank 2 in data, but rank 2 in forward was slow"
    assert named.what_is_wrong("forward") == wrong
    assert nobody.what_is_wrong("none") is None
    assert nobody.what_is_wrong("data") == "page names nobody, but rank 2 in data was slow"


# ---- The end -------------------------------------------------------------------------------------


@contextmanager
def running_demo(**environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start the demo as make does, and kill it in the end whatever happens."""
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield demo
    finally:
        demo.kill()
        demo.communicate()


def started_by(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the demo's programs and what they started themselves."""
    children = psutil.Process(demo.pid).children(recursive=True)
    return [child for child in children if MARK in child.environ()]


def test_unknown_fault_is_one_line() -> None:
    """A wrong DEMO_FAULT exits 2 with one line that says what it may be."""
    with running_demo(DEMO_FAULT="gpu") as demo:
        said, _ = demo.communicate(timeout=60)

    assert demo.returncode == 2
    assert said == "DEMO_FAULT=gpu is not one of data, forward, backward, optimizer, none\n"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("data", r"rank=2 stage=data gpus_lost=\S+ alert=RankskewStraggler after="),
        ("none", r"no straggler gpus_lost=0\.\d+ judged=\d+s alert=none after="),
    ],
)
def test_planted_straggler_is_paged(fault: str, verdict: str) -> None:
    """The whole demo as a reader runs it: its verdict is what was planted, and all went well."""
    with running_demo(DEMO_ONCE="1", DEMO_FAULT=fault) as demo:
        said, _ = demo.communicate(timeout=400)

    assert demo.returncode == 0, said
    assert re.search(rf"^verdict: job=demo {verdict}", said, re.MULTILINE), said


@pytest.mark.e2e
def test_interrupted_demo_leaves_nothing() -> None:
    """Ctrl-C in the middle ends every process of the demo, and removes its files."""
    # Not tmp_path: it may be too long for a socket's path.
    with (
        tempfile.TemporaryDirectory() as folder,
        running_demo(DEMO_ONCE="1", TMPDIR=folder) as demo,
    ):
        assert demo.stdout is not None
        assert any(line.split()[:1] == ["training"] for line in demo.stdout)
        # The exporter, Prometheus, Alertmanager, torchrun, and at least one rank of it.
        assert wait_for(lambda: len(started_by(demo)) > 4 or None, 60)
        programs = started_by(demo)
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=60)
        left = list(Path(folder).iterdir())

    assert demo.returncode == 128 + signal.SIGINT
    assert said.endswith("Stopped; nothing is left running.\n")
    assert not any(runs(program) for program in programs)
    assert left == []
