"""Tests of the warning about a loop whose steps cannot be seen."""

import pytest

from rank_probe.measure import events
from rank_probe.report.missing_steps import PATIENCE_SECONDS, MissingSteps

FETCH, BACKWARD, OPTIMIZER = events.FETCHED, events.BACKWARD_ENDED, events.OPTIMIZER_ENDED


class Watched:
    """A loop that shows some signs, looked at once a second."""

    def __init__(self, *seen: int, steps: int = 0, automatic: bool = True) -> None:
        self.seconds = 0.0
        self._missing_steps = MissingSteps(automatic=automatic, now=lambda: self.seconds)
        self._seen, self._steps = set(seen), steps

    def watch(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self._missing_steps.look(self._steps, lambda: self._seen)
            self.seconds += 1


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        ({FETCH}, "backward does not run"),
        ({FETCH, BACKWARD}, "no optimizer of torch.optim"),
        ({BACKWARD}, "no optimizer of torch.optim"),
        ({OPTIMIZER}, "no batch of a DataLoader"),
    ],
)
def test_loop_without_steps_is_told_once(
    seen: set[int], missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says what is missing and shows the lines that mend it."""
    loop = Watched(*seen)
    loop.watch(PATIENCE_SECONDS)
    assert caplog.text == ""
    loop.watch(10 * PATIENCE_SECONDS)

    (record,) = caplog.records
    assert missing in record.message
    assert "probe.step()" in record.message


def test_nothing_is_told_before_training_begins(caplog: pytest.LogCaptureFixture) -> None:
    """Loading a model may take an hour."""
    Watched(events.ENTER, events.WAIT).watch(10 * PATIENCE_SECONDS)

    assert caplog.text == ""


def test_loop_with_steps_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also if it stops stepping later."""
    loop = Watched(FETCH, BACKWARD, OPTIMIZER, steps=1)
    loop.watch(1)
    loop._steps = 0
    loop.watch(10 * PATIENCE_SECONDS)

    assert caplog.text == ""


def test_loop_that_should_give_its_steps_is_told_that_it_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By hand, nothing else ends a step."""
    Watched(FETCH, BACKWARD, OPTIMIZER, automatic=False).watch(2 * PATIENCE_SECONDS)

    assert "probe.step() was not called" in caplog.text
