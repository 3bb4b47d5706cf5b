"""A test that takes the join's rounds itself has no training for the join to yield to."""

import pytest

from rank_probe.guest import yielding


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between the join's pieces of work: they are most of its time."""
    monkeypatch.setattr(yielding, "TURN_SECONDS", 0.0)
