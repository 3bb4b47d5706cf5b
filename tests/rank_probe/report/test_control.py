"""The operator's level reaches the probe: by a file, which wins, or by the exporter's answer."""

import logging
from pathlib import Path

import pytest

from rank_probe.report.control import Control


def control(path: Path | None = None) -> Control:
    return Control({} if path is None else {"RANK_PROBE_CONTROL": str(path)})


def test_without_any_wish_the_stages_are_timed() -> None:
    """Nobody asked for anything: the default level."""
    assert control().level({}) == "stages"


@pytest.mark.parametrize("level", ["off", "stages", "detail"])
def test_answer_sets_the_level(level: str) -> None:
    """What the exporter answers to a push is obeyed at once."""
    assert control().level({"level": level}) == level


def test_level_stays_while_the_exporter_is_away() -> None:
    """A rank that was turned off does not wake up because its exporter restarts."""
    asked = control()
    asked.level({"level": "off"})

    assert asked.level({}) == "off"
    assert asked.level({"level": "stages"}) == "stages"


def test_file_wins_over_the_answer(tmp_path: Path) -> None:
    """Who can write the file has the last word, and it is read anew each time."""
    path = tmp_path / "level"
    path.write_text("detail\n")
    asked = control(path)

    assert asked.level({"level": "off"}) == "detail"
    path.write_text("off")
    assert asked.level({"level": "detail"}) == "off"
    path.unlink()
    assert asked.level({}) == "detail"


@pytest.mark.parametrize("content", [None, b"", b"loud", b"\xff", b"off detail", b"x" * 10_000])
def test_file_without_a_level_is_no_opinion_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    """A missing or wrong file leaves the level to the answer, with one line in the log."""
    path = tmp_path / "level"
    if content is not None:
        path.write_bytes(content)
    asked = control(path)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert asked.level({"level": "off"}) == "off"
        assert asked.level({"level": "detail"}) == "detail"

    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert len(record.getMessage()) < 300


@pytest.mark.parametrize("answer", [{"level": "loud"}, {"level": 1}, {"level": ["off"]}])
def test_answer_without_a_level_changes_nothing(
    caplog: pytest.LogCaptureFixture, answer: dict[str, object]
) -> None:
    """A newer exporter may ask for what this probe does not know: logged once, then ignored."""
    asked = control()
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert asked.level(answer) == "stages"
        assert asked.level(answer) == "stages"

    assert len(caplog.records) == 1
