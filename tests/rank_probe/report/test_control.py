"""The operator's level reaches the probe by the exporter's answer."""

import logging

import pytest

from rank_probe.report.control import Control
from rank_probe.wire.snapshot import LEVELS


def test_answer_sets_the_level_until_another_does() -> None:
    """A rank that was turned off does not wake up because its exporter restarts."""
    control = Control()
    assert control.level({}) == "stages"
    for level in LEVELS:
        assert control.level({"level": level}) == level
        assert control.level({}) == level


@pytest.mark.parametrize("level", ["loud", 1, ["off"]])
def test_answer_without_a_level_changes_nothing(
    caplog: pytest.LogCaptureFixture, level: object
) -> None:
    """A newer exporter may ask for what this probe does not know: logged once, then ignored."""
    control = Control()
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert control.level({"level": level}) == "stages"
        assert control.level({"level": level}) == "stages"

    assert len(caplog.records) == 1
