"""Tests that the crosscheck serves what the ranks push and finds what the rules get wrong."""

import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.crosscheck import Case, Nodes, cases, compare, failures, reference, served
from demo.stack import Series
from exporter.accounting import kinds
from tests.alerts.jobs import Fault, Job, simulate, states

LATE = (1, "forward")
ASKED = 180.0
CASE = Case("straggler", Job(seconds=200, join=True, faults=(Fault(*LATE, 0.25),)), LATE)
STEPS = simulate(CASE.job)


def answer(scale: float = 1.0, rank: int = LATE[0]) -> dict[str, list[Series]]:
    """What rules that are *scale* too high would say, and that *rank* is late."""
    who = {"job_id": CASE.name}
    true = reference(CASE, STEPS, ASKED)
    right = kinds(true, {LATE[0]})
    return {
        "named": [Series(who | {"rank": str(rank), "stage": LATE[1]}, 1.0)],
        "kinds": [
            Series(who | {"kind": kind}, scale * getattr(right, kind) / true.seconds)
            for kind in ("persistent", "rotating", "group", "common")
        ],
        "source": [Series(who | {"source": "join"}, 1.0)],
    }


def row(said: dict[str, list[Series]]) -> dict[str, Any]:
    return compare(CASE, STEPS, {ASKED: said})


def test_right_answers_are_right() -> None:
    """What the reference says differs by nothing."""
    right = row(answer())

    assert right["all"] == pytest.approx(0, abs=1e-9)
    assert right["GPUs lost"] > 0.5
    assert not failures(right, CASE)


def test_wrong_answers_are_found() -> None:
    """A cost that is a quarter too high, another rank, another source, and silence."""
    assert "all differs by 0.25" in " ".join(failures(row(answer(1.25)), CASE))
    assert failures(row(answer(rank=3)), CASE) == ["straggler-4-join: named 3:forward"]
    other = replace(CASE, job=replace(CASE.job, join=False))
    assert "no source spoke" in " ".join(failures(compare(other, STEPS, {ASKED: answer()}), other))
    silent: dict[str, list[Series]] = {"named": [], "kinds": [], "source": []}
    assert "straggler-4-join: named nobody" in failures(row(silent), CASE)


def test_pages_hold_what_the_ranks_of_a_node_push() -> None:
    """Of eight ranks a node, the second one's last two; timestamps are of the clock."""
    job = Job(ranks=10, seconds=30.0)
    nodes = Nodes({"j": (job, states(job, simulate(job)))})
    nodes.began -= 20.0
    with served(nodes) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/node/j.1") as got:
        lines = got.read().decode().splitlines()

    assert nodes.names == ["j.0", "j.1"]
    assert any(
        line.startswith('rankskew_steps_total{job_id="j",peer_group="g0",rank="9"}')
        for line in lines
    )
    assert not any('rank="7"' in line for line in lines)
    beats = [float(line.split()[1]) for line in lines if "heartbeat" in line]
    assert beats == [pytest.approx(nodes.began + 20.0, abs=5)] * 2


def test_every_number_of_ranks_is_asked_of_both_sources() -> None:
    """2 to 64 ranks, each with a straggler, by the join and by windows."""
    asked = {(case.job.ranks, case.job.join) for case in cases() if case.late}

    assert asked == {(ranks, join) for ranks in (2, 4, 8, 16, 32, 64) for join in (True, False)}
