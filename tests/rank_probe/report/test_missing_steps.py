"""Tests of the warning about a loop whose steps cannot be seen."""

import pytest

from rank_probe.measure import events
from rank_probe.report.missing_steps import COMPILING_SECONDS, PATIENCE_SECONDS, MissingSteps

FETCH, BACKWARD, OPTIMIZER = events.FETCHED, events.BACKWARD_ENDED, events.OPTIMIZER_ENDED


def watch(missing: MissingSteps, clock: list[float], *seen: int, steps: int = 0) -> None:
    """Look once a second, for long, at a loop that shows these signs and has done *steps*."""
    until = clock[0] + 10 * PATIENCE_SECONDS
    while clock[0] < until:
        missing.look(steps, lambda: seen)
        clock[0] += 1


@pytest.mark.parametrize(
    ("automatic", "seen", "cause"),
    [
        (True, [FETCH], "backward does not run"),
        (True, [FETCH, BACKWARD], "no optimizer of torch.optim"),
        (True, [BACKWARD], "no optimizer of torch.optim"),
        (True, [OPTIMIZER], "no batch of a DataLoader"),
        (False, [FETCH, BACKWARD, OPTIMIZER], "probe.step() was not called"),
    ],
)
def test_loop_without_steps_is_told_once(
    automatic: bool, seen: list[int], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says what is missing and shows the lines that mend it.

    None before training begins: loading a model may take an hour.
    """
    clock = [0.0]
    missing = MissingSteps(automatic=automatic, now=lambda: clock[0])
    watch(missing, clock, events.ENTER, events.WAIT)
    began = clock[0]
    missing.look(0, lambda: seen)
    clock[0] = began + (COMPILING_SECONDS if seen == [FETCH] else PATIENCE_SECONDS)
    missing.look(0, lambda: seen)
    assert caplog.text == ""
    clock[0] += 1
    missing.look(0, lambda: seen)
    (record,) = caplog.records
    assert cause in record.message
    assert "probe.step()" in record.message
    watch(missing, clock, *seen)
    assert caplog.records == [record]


def test_loop_with_steps_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also if it stops stepping later."""
    clock = [0.0]
    missing = MissingSteps(automatic=True, now=lambda: clock[0])
    missing.look(1, lambda: [FETCH])
    watch(missing, clock, FETCH, BACKWARD, OPTIMIZER)

    assert caplog.text == ""
