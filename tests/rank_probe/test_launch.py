"""The helpers of the tests with real ranks: what they run again, and what they keep."""

import json
import socket
from pathlib import Path

import pytest

from tests.rank_probe.launch import ATTEMPTS, Jobs, Ranks, is_late
from tests.rank_probe.sink import listening

PUSHES = 50


def ranks(late_seconds: float) -> Ranks:
    """Two ranks, of which the second was late in data and the first one waited for it."""
    late, victim = {"data": late_seconds, "sync": 0.0}, {"data": 0.0, "sync": late_seconds}
    return {0: {"stage_seconds": victim}, 1: {"stage_seconds": late}}


@pytest.mark.parametrize(("case", "again"), [("first", ("first",)), ("other", ("first", "other"))])
@pytest.mark.parametrize("wrong", range(ATTEMPTS + 1))
def test_case_may_be_wrong_but_not_each_time(wrong: int, case: str, again: tuple[str, ...]) -> None:
    """Only the case in question is run again, after the first one, no more often than is said."""
    launched: list[tuple[str, ...]] = []

    def launch(*cases: str) -> dict[str, Ranks]:
        launched.append(cases)
        return {case: ranks(5.0 if len(launched) <= wrong else 1.0) for case in cases}

    jobs = Jobs(launch, "first", "other")
    if wrong < ATTEMPTS:
        jobs.check(case, is_late(1, "data", 1.0))
    else:
        with pytest.raises(AssertionError):
            jobs.check(case, is_late(1, "data", 1.0))

    assert launched == [("first", "other"), *[again] * min(wrong, ATTEMPTS - 1)]


def test_push_whose_answer_nobody_waited_for_is_taken_in(tmp_path: Path) -> None:
    """What was sent before the sink closes is kept, in the order in which it was made."""
    with listening(tmp_path / "s") as sink:
        for number in reversed(range(PUSHES)):
            body = json.dumps({"heartbeat_timestamp_seconds": number}).encode()
            head = f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            with socket.socket(socket.AF_UNIX) as rank:
                rank.connect(str(tmp_path / "s"))
                rank.sendall(head.encode() + body)

    assert [snapshot["heartbeat_timestamp_seconds"] for snapshot in sink.snapshots] == [
        *range(PUSHES)
    ]
