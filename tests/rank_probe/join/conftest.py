"""A join whose rounds a test takes itself has no training to give way to."""

import pytest

from rank_probe.guest import yielding


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no pauses between its pieces of work: they are most of its time."""
    monkeypatch.setattr(yielding, "TURN_SECONDS", 0.0)
