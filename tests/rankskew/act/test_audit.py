"""The audit log is complete, of one process, and says what is held."""

from pathlib import Path

import pytest

from exporter.errors import StartError
from rankskew.act.audit import AuditLog

LINE = '{"version": 1, "time": 1.0, "event": "hold", "target": "slurm"}\n'


def lines(path: Path) -> list[str]:
    log = AuditLog(path)
    try:
        return [str(each["event"]) for each in log.lines()]
    finally:
        log.close()


def test_half_of_a_last_line_has_not_been_done(tmp_path: Path) -> None:
    """It is cut off, so that the next line is whole."""
    path = tmp_path / "a" / "act.jsonl"
    path.parent.mkdir()
    path.write_text(LINE + '{"event": "fr')

    assert lines(path) == ["hold"]
    assert path.read_text() == LINE


@pytest.mark.parametrize("line", ["x\n", "{}\n", "[]\n", '{"event": "hold"}\n', "\n"])
def test_line_that_is_none_ends_the_start(tmp_path: Path, line: str) -> None:
    """A node might stand in it that nobody would free."""
    (tmp_path / "act.jsonl").write_text(LINE + line + LINE)

    with pytest.raises(StartError, match=r"act\.jsonl: line 2 is none of an audit log"):
        lines(tmp_path / "act.jsonl")


def test_log_is_of_one_process(tmp_path: Path) -> None:
    """Two would not know what the other holds."""
    log = AuditLog(tmp_path / "act.jsonl")
    with pytest.raises(StartError, match="another rankskew act writes to"):
        AuditLog(tmp_path / "act.jsonl")
    log.close()

    assert lines(tmp_path / "act.jsonl") == []


def test_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot open .*: Is a directory"):
        AuditLog(tmp_path)
