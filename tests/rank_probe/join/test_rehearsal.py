"""Rank 0 rehearses a round before training, because the first one is slow."""

import gc
import threading
from typing import Any

import pytest

from rank_probe.guest.guard import failures
from rank_probe.join.rehearsal import rehearse
from rank_probe.judge.judge import Judge
from rank_probe.judge.verdict import WARMING_UP, Verdict


def test_all_of_a_round_is_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the windows, in a thread that is then gone: its setting of OpenMP must not stay."""
    judged: list[tuple[Verdict, str]] = []
    judge = Judge.judge

    def watched(self: Judge, *arguments: Any, **named: Any) -> Verdict:
        verdict = judge(self, *arguments, **named)
        judged.append((verdict, threading.current_thread().name))
        return verdict

    monkeypatch.setattr(Judge, "judge", watched)
    before = threading.active_count()
    rehearse.__wrapped__().join()

    verdict, name = judged[-1]
    assert verdict.reason != WARMING_UP
    assert verdict.ranks == {"0": 3}
    assert name == "rank_probe_join"
    assert (threading.active_count(), failures.count) == (before, 0)


def test_a_round_leaves_no_garbage() -> None:
    """Python would collect it at the next allocation, perhaps while training waits."""
    rehearse.__wrapped__().join()  # Imports leave some.
    gc.collect()
    gc.disable()
    try:
        rehearse.__wrapped__().join()
        assert gc.collect() == 0
    finally:
        gc.enable()
