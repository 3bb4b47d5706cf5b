"""Tests of the guard: our failures stay ours, the user's stay theirs."""

import logging

import pytest

from rank_probe.guest.guard import failures, never_raise


def test_failures_are_counted_and_only_the_first_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that breaks in every step raises nothing, and does not fill the user's log."""

    @never_raise
    def broken() -> int:
        raise RuntimeError("ours")

    monkeypatch.setattr(failures, "count", 0)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert broken() is broken() is None

    assert failures.count == 2
    assert len(caplog.records) == 1
    assert "training continues" in caplog.text


@pytest.mark.parametrize("theirs", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(theirs: type[BaseException]) -> None:
    """Ctrl-C inside the probe still stops the program."""

    @never_raise
    def interrupted() -> None:
        raise theirs

    with pytest.raises(theirs):
        interrupted()


def test_result_passes_through() -> None:
    """A function that works is not changed."""
    assert never_raise(lambda a, *, b: a + b)(1, b=2) == 3
