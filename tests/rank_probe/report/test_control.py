"""The operator's level reaches the probe: by a file, which wins, or by the exporter's answer."""

import logging
import os
from pathlib import Path

import pytest

from rank_probe.report.control import Control
from rank_probe.wire.snapshot import LEVELS


def test_answer_sets_the_level_until_another_does() -> None:
    """A rank that was turned off does not wake up because its exporter restarts."""
    control = Control({})
    assert control.level({}) == "stages"
    for level in LEVELS:
        assert control.level({"level": level}) == level
        assert control.level({}) == level


def test_file_wins_over_the_answer(tmp_path: Path) -> None:
    """Who can write the file has the last word, and it is read anew each time."""
    path = tmp_path / "level"
    path.write_text("detail\n")
    control = Control({"RANK_PROBE_CONTROL": str(path)})

    assert control.level({"level": "off"}) == "detail"
    path.write_text("off")
    assert control.level({"level": "detail"}) == "off"
    path.unlink()
    assert control.level({}) == "detail"


@pytest.mark.parametrize("content", [None, b"", b"loud", b"\xff", b"off detail", b"x" * 10_000])
def test_file_without_a_level_is_no_opinion_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """A missing or wrong file leaves the level to the answer, with one line in the log."""
    path = tmp_path / "level"
    if content is not None:
        path.write_bytes(content)
    control = Control({"RANK_PROBE_CONTROL": str(path)})
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert control.level({"level": "off"}) == "off"
        assert control.level({"level": "detail"}) == "detail"

    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert len(record.getMessage()) < 300


def test_pipe_in_place_of_the_file_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pipe that nobody writes to is no opinion either."""
    os.mkfifo(tmp_path / "level")

    assert Control({"RANK_PROBE_CONTROL": str(tmp_path / "level")}).level({}) == "stages"
    assert "it is not a regular file" in caplog.text


@pytest.mark.parametrize("level", ["loud", 1, ["off"]])
def test_answer_without_a_level_changes_nothing(
    caplog: pytest.LogCaptureFixture, level: object
) -> None:
    """A newer exporter may ask for what this probe does not know: logged once, then ignored."""
    control = Control({})
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert control.level({"level": level}) == "stages"
        assert control.level({"level": level}) == "stages"

    assert len(caplog.records) == 1
