"""While the demo waits it prints what the built-in page says, each time that this changes."""

from collections.abc import Iterator
from typing import Any

import pytest

from demo.scenario import Scenario
from demo.verdict import Health


def job(
    state: str, sentence: str, *late: int, reason: str | None = None, cause: str = ""
) -> dict[str, Any]:
    """Return the page's data about the demo's job, with these ranks *late* in data."""
    why = {"sentence": cause} if cause else None
    named = [{"rank": each, "stage": "data", "kind": "persistent", "cause": why} for each in late]
    verdict = {"state": state, "reason": reason, "sentence": sentence, "late": named}
    return {"verdict": verdict}


def test_page_is_repeated_when_it_says_something_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each new state, name or cause, none for figures or while nothing is known."""
    monkeypatch.setattr("demo.scenario.time.sleep", lambda seconds: None)
    said: Iterator[dict[str, Any] | None] = iter(
        [
            None,
            job("starting", "Cannot judge this job yet.", reason="warming_up"),
            job("starting", "Cannot judge this job yet.", reason="warming_up"),
            job("straggler", "Rank 2 is slow loading data: 0.9 GPUs.", 2),
            job("straggler", "Rank 2 is slow loading data: 1.0 GPUs.", 2),
            job("straggler", "Rank 2 is slow: 1.0 GPUs.", 2, cause="it sleeps"),
            job("straggler", "Ranks 2 and 3 are slow loading data.", 2, 3),
        ]
    )
    answers = iter([None] * 6 + [Health("demo", 0.0, 1.0, "none", 1.0)])

    found = Scenario("data", once=True).watch([], lambda: next(answers), lambda: next(said))

    assert isinstance(found, Health)
    assert [line.split(" s  ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "Cannot judge this job yet.",
        "Rank 2 is slow loading data: 0.9 GPUs.",
        "Rank 2 is slow: 1.0 GPUs. Cause: it sleeps.",
        "Ranks 2 and 3 are slow loading data.",
    ]
