"""`rankskew control --profile` orders a profile, waits for it, and says in one line what failed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.commands import profile
from exporter.operator import client
from exporter.operator.orders import ProfileOrder
from rankskew.__main__ import main
from tests.exporter.profiles.traces import cpu_trace

Says = Callable[[ProfileOrder], dict[str, dict[str, str]]]
ORDER = ("control", "--profile", "llama", "--exporter=unix:/x")


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[ProfileOrder]]:
    """Let an exporter answer as *says* does; return the orders that it gets."""

    def answering(says: Says, peer: int | None = 1) -> list[ProfileOrder]:
        got: list[ProfileOrder] = []

        def answer(order: ProfileOrder, endpoint: str) -> dict[str, Any]:
            got.append(order)
            start = order.start or round(10 * order.ahead_seconds)
            chosen = {"rank": 2, "peer": peer, "start": start, "peer_group": "pp0"}
            return chosen | {"profiles": says(order)}

        monkeypatch.setattr(client, "profile", answer)
        monkeypatch.setattr(profile, "POLL_SECONDS", 0.0)
        return got

    return answering


def both(problem: str = "", paths: Sequence[str] = ("", "")) -> dict[str, dict[str, str]]:
    return {
        rank: {"path": path, "problem": problem} for rank, path in zip("21", paths, strict=True)
    }


def test_both_traces_are_compared(
    orders: Callable[..., list[ProfileOrder]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once both are there; until then the same order is given with all that was chosen."""
    paths = [f"{tmp_path}/late.json", f"{tmp_path}/peer.json"]
    for path, milliseconds in zip(paths, (21, 1), strict=True):
        Path(path).write_text(json.dumps(cpu_trace({"aten::sleep_op": milliseconds})))
    answers = iter([{}, {}, {"2": both()["2"]}, both(), both(paths=paths)])
    got = orders(lambda order: next(answers))

    assert main([*ORDER, "--steps", "3"]) == 0
    assert got == [ProfileOrder("llama", steps=3), *[ProfileOrder("llama", 2, 1, 3, 40)] * 4]
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "rank 2 and 1: 3 steps from step 40 on",
        f"rank 2: {paths[0]}",
        f"rank 1: {paths[1]}",
    ]
    assert said[4] == "aten::sleep_op takes 21 ms a step, 1 ms on its peer."


def test_step_that_came_too_early_is_ordered_anew(
    orders: Callable[..., list[ProfileOrder]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Further ahead each time, up to a minute; then, or for a given step, that is the answer."""
    got = orders(lambda order: both("step 40 was over when the rank heard of it"))

    assert main([*ORDER, "5"]) == 2
    assert [each.ahead_seconds for each in got if each.start is None] == [4.0, 16.0, 64.0]
    assert "rank 2: no trace: step 40 was over when the rank" in capsys.readouterr().out
    got.clear()
    assert main([*ORDER, "--start=40"]) == 2
    assert {each.ahead_seconds for each in got} == {4.0}


def test_rank_without_a_peer_here_is_told_with_what_to_run(
    orders: Callable[..., list[ProfileOrder]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same steps, on the other node; that command prints no other."""
    orders(lambda order: {"2": both(paths=["/a", ""])["2"]}, peer=None)

    assert main([*ORDER, "--steps=7"]) == 0
    said = capsys.readouterr().out
    assert "peer group 'pp0' is here; within 60 s" in said
    assert "\n  rankskew control --profile llama PEER --start 40 --steps 7\n" in said
    assert main([*ORDER, "--start=40"]) == 0
    assert "PEER" not in capsys.readouterr().out


def test_job_that_stands_still_is_not_waited_for(
    orders: Callable[..., list[ProfileOrder]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(profile, "MOST_SECONDS", 0.01)
    orders(lambda order: both())

    assert main([*ORDER, "--json"]) == 2
    assert "no end of the profile after 0 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x"], "--profile takes JOB or JOB RANK"),
        (["1", "2"], "--profile takes JOB or JOB RANK"),
        (["--steps", "21"], "steps must be 1 to 20"),
    ],
)
def test_mistake_is_one_line(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ORDER[:3], *words]) == 2
    assert sentence in capsys.readouterr().err
