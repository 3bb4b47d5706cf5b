"""The file that the lines are appended to, whatever its disk does."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from exporter.errors import StartError
from exporter.events import file as events_file
from exporter.events.file import EventsFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


@contextmanager
def failing(what: object, name: str, error: int) -> Iterator[None]:
    """Let a call fail for a while."""

    def fail(*_: object) -> NoReturn:
        raise OSError(error, os.strerror(error))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what, name, fail)
        yield


def counts(file: EventsFile) -> tuple[int, int]:
    return file.written, file.dropped


def test_lines_are_appended(path: Path) -> None:
    """What is in the file stays, and everything that waits is written at the end."""
    path.write_text("before\n")
    file = EventsFile(path)
    file.start()
    for line in ("one", "two"):
        file.write(line)
    file.stop()

    assert path.read_text() == "before\none\ntwo\n"
    assert counts(file) == (2, 0)
    assert EventsFile(path).tail() == ["before", "one", "two"]


def test_others_may_not_read_it(path: Path) -> None:
    """Names of jobs are not for everybody on the node."""
    EventsFile(path)

    assert path.stat().st_mode & 0o007 == 0


def test_file_that_was_moved_is_opened_again(path: Path, tmp_path: Path) -> None:
    """logrotate moves it, and needs to tell nobody."""
    file = EventsFile(path)
    file._append("one")
    path.rename(tmp_path / "events.jsonl.1")
    path.touch()  # As its option `create` does.
    file._append("two")
    path.unlink()
    file._append("three")

    assert (tmp_path / "events.jsonl.1").read_text() == "one\n"
    assert path.read_text() == "three\n"


def test_full_disk_costs_lines_and_one_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The exporter goes on, counts them, and writes again once there is room."""
    file = EventsFile(path)
    with failing(os, "write", errno.ENOSPC):
        file._append("one")
        file._append("two")
    file._append("three")

    assert path.read_text() == "three\n"
    assert counts(file) == (1, 2)
    assert caplog.messages == [
        f"cannot write the events file {path}: [Errno 28] No space left on device"
    ]


@pytest.mark.parametrize("trouble", [errno.EROFS, errno.ENOSPC])
def test_disk_in_trouble_does_not_prevent_the_start(path: Path, trouble: int) -> None:
    """A full or read-only disk costs lines, not the node's metrics; later ones are written."""
    with failing(os, "open", trouble):
        file = EventsFile(path)
        file._append("one")
    assert file.tail() == []
    file._append("two")

    assert path.read_text() == "two\n"
    assert counts(file) == (1, 1)


def test_half_a_line_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has room for a part of a line leaves no broken line behind."""
    file = EventsFile(path)
    file._append("one")
    whole = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda number, line: whole(number, line[:2]))
        file._append("two")
    file._append("three")

    assert path.read_text() == "one\nthree\n"
    assert counts(file) == (2, 1)


def test_disk_that_hangs_costs_lines_not_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_file, "MOST_WAITING", 2)
    file = EventsFile(path)
    for line in ("one", "two", "three"):
        file.write(line)

    assert counts(file) == (0, 1)


def test_only_the_end_of_a_long_file_is_read_back(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that was never rotated does not slow the start, nor one that cannot be read."""
    monkeypatch.setattr(events_file, "READ_BACK_BYTES", 9)
    path.write_text("one\ntwo\nthree\n")
    file = EventsFile(path)

    assert file.tail() == ["wo", "three"]
    with failing(Path, "open", errno.EACCES):
        assert file.tail() == []
    assert f"cannot read back the events file {path}" in caplog.text


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nowhere/events", "No such file or dir"), (".", "Is a directory; name")],
)
def test_place_that_cannot_be_written_ends_the_start(
    tmp_path: Path, name: str, complaint: str
) -> None:
    with pytest.raises(StartError, match=f"cannot write --events.file .*: {complaint}"):
        EventsFile(tmp_path / name)


# Exits with the number of lines that it has read back.
WRITE = """
import sys
from pathlib import Path
from exporter.events.file import EventsFile

file = EventsFile(Path(sys.argv[1]))
before = file.tail()
file.start()
file.write("one")
file.stop()
sys.exit(len(before))
"""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("what", ["pipe", "socket", "file"])
def test_line_goes_to_the_stream_of_the_process(tmp_path: Path, name: str, what: str) -> None:
    """As a container's log, or systemd's, which is a socket that cannot be opened by its name."""
    ours, theirs = (each.detach() for each in socket.socketpair())
    if what == "pipe":
        ours, theirs = os.pipe()
    elif what == "file":
        ours = theirs = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    done = subprocess.run(
        [sys.executable, "-c", WRITE, f"/dev/{name}"],
        stdout=theirs if name == "stdout" else None,
        stderr=theirs if name == "stderr" else None,
        check=False,
    )
    if what == "file":
        os.lseek(ours, 0, os.SEEK_SET)

    assert (os.read(ours, 999), done.returncode) == (b"one\n", 0)
    for end in {ours, theirs}:
        os.close(end)


def test_named_pipe_is_written_without_waiting_for_its_reader(path: Path) -> None:
    """It cannot be read back; what is written waits in the pipe."""
    os.mkfifo(path)
    file = EventsFile(path)

    assert file.tail() == []
    file._append("one")
    with path.open("rb") as reader:
        assert reader.readline() == b"one\n"
