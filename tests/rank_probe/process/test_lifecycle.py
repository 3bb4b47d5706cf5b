"""Tests of the durations in a process's life."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rank_probe.process.lifecycle import Lifecycle, process_age_seconds
from rank_probe.wire.snapshot import LIFECYCLE
from tests.rank_probe.torch_hooks.test_compile_time import dynamo


class Clock:
    """Seconds that only pass when told to."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def no_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests compiled is nothing to these."""
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)


def test_each_event_has_its_duration(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name of LIFECYCLE gets the time between its own two moments."""
    life = Lifecycle(clock, age=lambda: 3.0)
    clock.pass_(1)
    life.rendezvous_begins()
    clock.pass_(10)
    life.rendezvous_ended()
    clock.pass_(100)
    life.first_step_done()
    clock.pass_(1_000)
    life.end()
    dynamo(monkeypatch, entire_frame_compile=5_000_000_000)

    expected = {"init": 4.0, "rendezvous": 10.0, "first_step": 100.0, "end": 1_000.0}
    assert life.seconds() == expected | {"compile": 5.0}
    assert set(life.seconds()) == set(LIFECYCLE)


def test_what_is_not_over_is_absent(clock: Clock) -> None:
    """A rank that is stuck in the rendezvous has no duration for it; a failed one is forgotten."""
    life = Lifecycle(clock, age=lambda: 3.0)
    life.rendezvous_begins()
    clock.pass_(60)
    assert life.seconds() == {"init": 3.0}

    life.rendezvous_begins()
    clock.pass_(2)
    life.rendezvous_ended()
    assert life.seconds() == {"init": 63.0, "rendezvous": 2.0}


def test_without_a_rendezvous_the_first_step_counts_from_the_probe(clock: Clock) -> None:
    """One rank alone has a first step too; where the process's start is unknown, no init."""
    life = Lifecycle(clock, age=lambda: None)
    clock.pass_(8)
    life.first_step_done()

    assert life.seconds() == {"first_step": 8.0}


def test_only_the_first_time_counts(clock: Clock) -> None:
    """A second process group, or a step noted again, moves nothing."""
    life = Lifecycle(clock, age=lambda: 0.0)
    for _ in range(2):
        life.rendezvous_begins()
        clock.pass_(1)
        life.rendezvous_ended()
        life.first_step_done()
        life.end()
        clock.pass_(50)

    assert life.seconds() == {"init": 0.0, "rendezvous": 1.0, "first_step": 0.0, "end": 0.0}


def test_process_start_is_read_from_linux() -> None:
    """A process that has just started is younger than this one, and than a minute."""
    code = "from rank_probe.process.lifecycle import process_age_seconds as age; print(age())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    mine = process_age_seconds()

    assert mine is not None
    assert -0.02 <= float(child.stdout) < mine < 86_400


def test_process_name_may_hold_anything(tmp_path: Path) -> None:
    """Parentheses and blanks in the command do not shift the fields."""
    stat = tmp_path / "stat"
    ticks = 10_000
    fields = " ".join(["S", *["7"] * 18, str(ticks), "0"])
    stat.write_text(f"42 (a) b (c)) {fields}")
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

    assert process_age_seconds(stat) == pytest.approx(since_boot, abs=5)


@pytest.mark.parametrize("content", [None, "", "42 (python) S 1"])
def test_without_linux_the_start_is_unknown(tmp_path: Path, content: str | None) -> None:
    """A file that is missing or of another shape is no reading."""
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)

    assert process_age_seconds(stat) is None
