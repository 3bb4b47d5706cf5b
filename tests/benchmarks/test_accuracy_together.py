"""The accuracy benchmark's larger faults: the grid, the load beside the ranks, simulated ranks."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import load
from benchmarks.accuracy.__main__ import work
from benchmarks.accuracy.joined import judge
from benchmarks.accuracy.load import Burst
from benchmarks.accuracy.plan import FAINT, JOIN, JOIN_FAULTS, Segment, grid
from benchmarks.accuracy.score import is_miss
from benchmarks.accuracy.trace import truth
from tests.benchmarks.test_accuracy import rows


def keys(*args: Any, **kwargs: Any) -> set[str]:
    return {segment.key for job in grid(*args, **kwargs) for segment in job}


def test_faint_faults_are_of_single_ranks() -> None:
    """Several late ranks, a turn of them, and twenty steps of one are larger."""
    found = {
        key.split("-")[3] for key in keys(["ddp"], [4], [1], sizes=[FAINT]) if key[-2:] == "-3"
    }

    assert found == {"data", "forward", "backward", "optimizer", "checkpoint", "gc"}


def test_sizes_of_changes_and_duties_are_their_own() -> None:
    """A change is not as large as a delay of one rank, and a duty costs what it costs."""
    found = keys(["ddp"], [4], [1], ["change", "duty", "load"], [0.25])

    assert found == {
        "ddp-4-1-change-6",
        "ddp-4-1-change-15",
        "ddp-4-1-duty-1.6",
        "ddp-4-1-load-0",
    }


def test_only_simulated_ranks_are_64() -> None:
    """They join and do not train, so no other way has so many, and that way no other number."""
    assert not keys(["ddp", "fsdp2"], [64])
    assert not keys([JOIN], [2, 4, 8])
    assert {key.split("-")[3] for key in keys([JOIN])} == set(JOIN_FAULTS)


def test_several_late_ranks_cost_no_sum() -> None:
    """They are late in the same steps, and wait for each other: a change is as large as each."""
    one = Segment("ddp", 4, 1, "change", 0.15, 10, 20)
    delayed = {rank: dict.fromkeys(range(10, 30), 0.015) for rank in range(4)}
    rows_of = rows(one, 0.015)
    true = truth(one, [row for rank in rows_of for row in rows_of[rank]], delayed)

    assert true.size == pytest.approx(0.15)
    assert true.planned_lost_run is None


def test_load_ends_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processes are killed when standard input is closed, and no other one is started.

    Each has its own session, or they would compete with rank 0 only.
    """
    started: list[subprocess.Popen[bytes]] = []
    sessions: set[int] = set()
    real, (read, write) = subprocess.Popen, os.pipe()

    def popen(command: list[str], **how: bool) -> subprocess.Popen[bytes]:
        started.append(real(command, start_new_session=how["start_new_session"]))
        sessions.add(os.getsid(started[-1].pid))
        if len(started) == 2:
            threading.Timer(0.1, os.close, [write]).start()
        return started[-1]

    monkeypatch.setattr(load, "bursts", lambda seed: [Burst(0, 60), Burst(0, 60), Burst(30, 60)])
    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(sys, "argv", ["load", "1"])
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        load.main()

    assert [each.returncode for each in started] == [-9, -9]
    assert sessions == {each.pid for each in started}


@pytest.mark.parametrize(
    ("fault", "size", "found"),
    [
        ("none", 0.0, None),
        ("data", 0.25, True),
        ("set", 0.25, True),
        ("node", 0.25, True),
        ("set_most", 0.25, False),  # Its past is too short.
    ],
)
def test_simulated_ranks_are_scored(fault: str, size: float, found: bool | None) -> None:
    """What the join's verdicts say goes through the scores of the real ranks."""
    row = judge(Segment(JOIN, 64, 2, fault, size, 30, 40))

    assert (row["found"], row["false alarms"]) == (found, 0)
    assert is_miss(row) == (found is False)
    assert (row["source"], row["not judgeable"]) == ("join", [])
    assert row["loss error"] == pytest.approx(0, abs=0.001)


def test_simulated_ranks_need_no_recording(tmp_path: Path) -> None:
    """Also with --judge they are judged, and their rows are stored with the others'."""
    result = tmp_path / "result.json"
    one = Segment(JOIN, 64, 1, "none", 0.0, 20, 10)
    found = work(iter([[one]]), tmp_path, result, only_judge=True)

    assert [row["key"] for row in found] == ["join-64-1-none-0"]
    assert "join-64-1-none-0" in result.read_text()
