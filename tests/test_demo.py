"""`make demo`: its set-up, its training, when it takes an answer as the verdict, and its end."""

import argparse
import hashlib
import os
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

from demo.__main__ import (
    HEALTHY_SECONDS,
    LATE_SECONDS,
    STRAGGLER,
    AlertWatch,
    Demo,
    PageWatch,
    Verdict,
)
from demo.train import SHARE, VARIANTS, number_of_steps, seconds_by_stage
from devstack.process import MARK, wait_for
from devstack.webhook import ReceivedAlert
from tests.test_devstack import runs

ROOT = Path(__file__).parents[1]

# ---- scripts/setup.sh: quick when done, clear when something may not be installed ----------------

HASHED = (
    "pyproject.toml",
    "hatch_build.py",
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
        ("everything", (), 2, "setup: expected demo, test or nightly, got 'everything'"),
    ],
    ids=["nothing to do", "demo", "tests", "unknown mode"],
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


# ---- The training --------------------------------------------------------------------------------


@pytest.mark.jobs
def test_every_variant_trains_to_the_end() -> None:
    """One rank alone runs its steps, learns, and leaves the process group without a warning."""
    code = (
        "import sys; from demo.train import main\n"
        f"for variant in {VARIANTS}:\n"
        "    sys.argv = ['', '--variant', variant, '--steps=50', '--step-seconds=0.002']\n"
        "    main()"
    )
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | alone | {"MASTER_PORT": "0"},  # any: there is no other rank to be told
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    trained = done.stdout.splitlines()
    assert [line.partition("loss 0.")[0] for line in trained] == ["step 50  "] * len(VARIANTS)


def options(**changed: object) -> argparse.Namespace:
    given = {"fault": "none", "fault_rank": 2, "delay": 0.1, "step_seconds": 0.2}
    return argparse.Namespace(**{**given, "steps": 100, "seconds": None, **changed})


@pytest.mark.parametrize("fault", SHARE)
def test_fault_is_on_one_rank_in_one_stage(fault: str) -> None:
    """The delay is added once, to the stage and the rank that were named."""
    healthy = seconds_by_stage(options(), rank=2)
    slow = seconds_by_stage(options(fault=fault), rank=2)

    assert sum(healthy.values()) == pytest.approx(0.2)
    assert slow == healthy | {fault: pytest.approx(healthy[fault] + 0.1)}
    assert seconds_by_stage(options(fault=fault), rank=1) == healthy


def test_duration_becomes_a_number_of_steps() -> None:
    """--seconds is turned into steps beforehand, the delay included, the same on every rank."""
    assert number_of_steps(options()) == 100
    assert number_of_steps(options(seconds=10.0)) == 50
    assert number_of_steps(options(seconds=9.0, fault="data")) == 30


# ---- The verdict ---------------------------------------------------------------------------------

STARTED = 990.0


class Parts:
    """The exporter, Prometheus and the webhook: they answer what the test sets."""

    url = "http://127.0.0.1"

    def __init__(self) -> None:
        self.job: dict[str, Any] | None = None
        self.received: list[ReceivedAlert] = []
        self.active: list[dict[str, Any]] = []
        self.is_judged = True

    def live_job(self, job_id: str) -> dict[str, Any] | None:
        return self.job

    def pages(self, alert: str | None = None, status: str | None = None) -> list[ReceivedAlert]:
        return [page for page in self.received if page.matches(alert, status, {})]

    def active_alerts(self) -> list[dict[str, Any]]:
        return self.active

    def query(self, expression: str) -> list[bool]:
        return [True] if self.is_judged else []

    def value(self, expression: str) -> float:
        return 0.031


@pytest.fixture
def parts() -> Any:
    return Parts()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the demo's clock, for the test to turn."""
    seconds = [1000.0]
    monkeypatch.setattr("demo.__main__.time.monotonic", lambda: seconds[0])
    return seconds


def alert_watch(parts: Any, fault: str = "data") -> AlertWatch:
    return AlertWatch(fault, parts, parts, parts, parts)


def line(verdict: Verdict | None) -> str:
    assert verdict is not None
    return verdict.line()


def live(state: str, *ranks: int, sentence: str = "It is so.", **more: Any) -> dict[str, Any]:
    """Return the page's data about a job whose *ranks* are late in data."""
    late = [
        {"rank": rank, "stage": "data", "kind": "persistent", "gpus_lost": 0.964, "cause": None}
        | more
        for rank in ranks
    ]
    return {"verdict": {"state": state, "reason": None, "sentence": sentence, "late": late}}


def page(status: str = "firing", **labels: str) -> ReceivedAlert:
    named = {"alertname": STRAGGLER, "job_id": "demo", "rank": "2", "stage": "data"}
    return ReceivedAlert(status, named | labels, {"summary": "Rank 2 is late."}, 1037.4)


def assert_open(watch: PageWatch | AlertWatch, now: list[float], passes: float) -> None:
    """Have no verdict before and after so many seconds."""
    assert watch.verdict(STARTED) is None
    now[0] += passes
    assert watch.verdict(STARTED) is None


def test_rank_that_stays_named_on_the_page_is_the_verdict(now: list[float], parts: Any) -> None:
    """It is taken once it has lasted, with the page's own cost; another name starts it anew."""
    watch = PageWatch(parts)
    assert watch.verdict(STARTED) is None  # The job is not known yet.
    for rank in (1, 2):
        parts.job = live("straggler", rank)
        assert_open(watch, now, LATE_SECONDS - 1)
    now[0] += 1

    assert line(watch.verdict(STARTED)) == (
        "verdict: job=demo rank=2 stage=data gpus_lost=0.96 alert=none(page) after=19s"
    )


@pytest.mark.parametrize("ranks", [(), (2,)])
def test_health_takes_time_and_no_interruption(
    now: list[float], parts: Any, ranks: tuple[int, ...]
) -> None:
    """An even job must stay even; a doubt starts it anew, a rank too mild to wake anybody not."""
    watch = PageWatch(parts)
    for state, passes in (("healthy", HEALTHY_SECONDS - 1), ("not_judgeable", 2), ("healthy", 0)):
        parts.job = live(state, *ranks)
        assert_open(watch, now, passes)
    now[0] += HEALTHY_SECONDS
    verdict = watch.verdict(STARTED)

    assert verdict is not None
    assert not verdict.rank
    assert verdict.gpus_lost == pytest.approx(0.964 * len(ranks))


def test_first_page_of_the_straggler_is_the_verdict(
    parts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank, stage and alert are its labels, the cost is its alert's value; each page is printed.

    A page for another rank or another stage is wrong; a resolved one or another alert is not.
    """
    parts.received = [page(alertname="RankskewNodeDown"), page()]
    others = {"labels": page(rank="3").labels, "value": "3e+00"}
    parts.active = [others, {"labels": page().labels, "value": "1.134e+01"}]

    assert line(alert_watch(parts).verdict(1000.0)) == (
        "verdict: job=demo rank=2 stage=data gpus_lost=11.34 alert=RankskewStraggler after=37s"
    )
    assert "PAGE after 37 s: RankskewStraggler\n  Rank 2 is late." in capsys.readouterr().out
    parts.received = [
        page(),
        page(rank="3"),
        page(stage="forward"),
        page(status="resolved", rank="4"),
        page(alertname="RankskewCommunicationBound", rank="5"),
    ]
    assert alert_watch(parts).wrong_names() == ["rank 3 in data", "rank 2 in forward"]


def test_quiet_minute_is_health_and_any_page_is_not(now: list[float], parts: Any) -> None:
    """Where no rank is slow the job must be judged without a break, and nobody paged."""
    watch = alert_watch(parts, fault="none")
    for is_judged, passes in ((True, HEALTHY_SECONDS - 1), (False, HEALTHY_SECONDS + 1), (True, 0)):
        parts.is_judged = is_judged
        assert_open(watch, now, passes)
    now[0] += HEALTHY_SECONDS
    assert line(watch.verdict(STARTED)) == (
        "verdict: job=demo no straggler gpus_lost=0.03 judged=60s alert=none after=190s"
    )

    parts.received = [page(alertname="RankskewNodeDown")]
    verdict = watch.verdict(STARTED)
    assert verdict is not None
    assert verdict.what_is_wrong("none") is not None


NAMED = Verdict(rank="2", stage="data", gpus_lost=1.0, alert="none(page)", after_seconds=30)
HEALTH = Verdict(gpus_lost=0.0, alert="none(page)", judged_seconds=90, after_seconds=120)


@pytest.mark.parametrize(
    ("fault", "verdict", "wrong"),
    [
        ("data", NAMED, None),
        ("forward", NAMED, "none(page) names rank 2 in data, but rank 2 in forward was slow"),
        ("none", NAMED, "none(page) names rank 2 in data, but no rank was slow"),
        ("data", HEALTH, "none(page) names nobody, but rank 2 in data was slow"),
        ("none", HEALTH, None),
    ],
)
def test_wrong_verdicts_are_told(fault: str, verdict: Verdict, wrong: str | None) -> None:
    """A verdict that is not what was planted is said to be wrong."""
    assert verdict.what_is_wrong(fault) == wrong


def test_page_is_repeated_when_it_says_something_else(
    monkeypatch: pytest.MonkeyPatch, parts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each new state, name or cause, none for figures or while nothing is known."""
    monkeypatch.setattr("demo.__main__.time.sleep", lambda seconds: None)
    monkeypatch.setattr("demo.__main__.time.monotonic", lambda: 7.0)
    said: Iterator[dict[str, Any] | None] = iter(
        [
            None,
            live("starting", sentence="Cannot judge this job yet."),
            live("starting", sentence="Cannot judge this job yet."),
            live("straggler", 2, sentence="Rank 2 is slow loading data: 0.9 GPUs."),
            live("straggler", 2, sentence="Rank 2 is slow loading data: 1.0 GPUs."),
            live("straggler", 2, sentence="Rank 2 is slow.", cause={"sentence": "it sleeps"}),
            live("straggler", 2, 3, sentence="Ranks 2 and 3 are slow loading data."),
        ]
    )
    watch = PageWatch(parts)
    answers = iter([None] * 6 + [HEALTH])
    monkeypatch.setattr(watch, "live", lambda: next(said))
    monkeypatch.setattr(watch, "verdict", lambda started: next(answers))

    assert Demo("data", once=True).wait(watch) is HEALTH
    assert [each.split(" s  ")[1] for each in capsys.readouterr().out.splitlines()] == [
        "Cannot judge this job yet.",
        "Rank 2 is slow loading data: 0.9 GPUs.",
        "Rank 2 is slow. Cause: it sleeps.",
        "Ranks 2 and 3 are slow loading data.",
    ]


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing(number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM in the middle ends every process of the demo, and removes its files."""
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
        demo.send_signal(number)
        said, _ = demo.communicate(timeout=60)
        left = list(Path(folder).iterdir())

    assert demo.returncode == 128 + number
    assert said.endswith("Stopped; nothing is left running.\n")
    assert not any(runs(program) for program in programs)
    assert left == []
