"""People who wait see the progress of a replay; scripts see nothing."""

import io

import pytest

from rankskew.commands.replay import ProgressLine


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_line_is_overwritten_and_taken_away() -> None:
    """It appears after a second, and leaves nothing behind."""
    stream, times = Terminal(), iter([0.0, 0.9, 1.1, 1.2, 1.4])
    line = ProgressLine("judging job j", stream, lambda: next(times))
    for share in (0.1, 0.5, 0.55, 1.0):
        line(share)
    line.clear()

    shown = stream.getvalue().split("\r")
    assert shown[1:3] == ["judging job j: 50%", "judging job j: 100%"]
    assert [text.strip() for text in shown[3:]] == ["", ""]


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["soon done", "no terminal"])
def test_nothing_is_written_where_nobody_waits(stream: io.StringIO) -> None:
    """Neither of what is soon done, nor into a file."""
    times = iter([0.0, 0.5 if stream.isatty() else 99.0])
    line = ProgressLine("judging job j", stream, lambda: next(times))
    line(0.5)
    line.clear()

    assert stream.getvalue() == ""
