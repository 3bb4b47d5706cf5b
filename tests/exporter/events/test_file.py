"""Tests of the file that the lines are appended to."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.errors import StartError
from exporter.events import file as events_file
from exporter.events.file import EventsFile


def written(path: Path, *lines: str) -> EventsFile:
    """Return a file that was stopped after *lines*."""
    file = EventsFile(path)
    file.start()
    for line in lines:
        file.write(line)
    file.stop()
    return file


def test_lines_are_appended(tmp_path: Path) -> None:
    """What is in the file stays, and everything that waits is written at the end."""
    path = tmp_path / "events.jsonl"
    path.write_text("before\n")
    file = written(path, "one", "two")

    assert path.read_text() == "before\none\ntwo\n"
    assert (file.written, file.dropped) == (2, 0)
    assert EventsFile(path).tail() == ["before", "one", "two"]


def test_others_may_not_read_it(tmp_path: Path) -> None:
    """Names of jobs are not for everybody on the node."""
    EventsFile(tmp_path / "events.jsonl")

    assert (tmp_path / "events.jsonl").stat().st_mode & 0o007 == 0


def test_file_that_was_moved_is_opened_again(tmp_path: Path) -> None:
    """logrotate moves it, and needs to tell nobody."""
    path = tmp_path / "events.jsonl"
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exporter goes on, counts them, and writes again once there is room."""
    path = tmp_path / "events.jsonl"
    file = EventsFile(path)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        file._append("one")
        file._append("two")
    file._append("three")

    assert path.read_text() == "three\n"
    assert (file.written, file.dropped) == (1, 2)
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot write the events file {path}: [Errno 28] No space left on device"
    ]


@pytest.mark.parametrize("trouble", [errno.EROFS, errno.ENOSPC])
def test_disk_in_trouble_does_not_prevent_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: int
) -> None:
    """A full or read-only disk costs lines, not the node's metrics; later ones are written."""
    path = tmp_path / "events.jsonl"

    def refuse(*_: object) -> int:
        raise OSError(trouble, os.strerror(trouble))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        file = EventsFile(path)
        file._append("one")
    before = file.tail()
    file._append("two")

    assert before == []
    assert path.read_text() == "two\n"
    assert (file.written, file.dropped) == (1, 1)


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has room for a part of a line leaves no broken line behind."""
    path = tmp_path / "events.jsonl"
    file = EventsFile(path)
    file._append("one")
    whole = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda number, line: whole(number, line[:2]))
        file._append("two")
    file._append("three")

    assert path.read_text() == "one\nthree\n"
    assert (file.written, file.dropped) == (2, 1)


def test_disk_that_hangs_costs_lines_not_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that nobody takes do not pile up."""
    monkeypatch.setattr(events_file, "MOST_WAITING", 2)
    file = EventsFile(tmp_path / "events.jsonl")
    for line in ("one", "two", "three"):
        file.write(line)

    assert file.dropped == 1


def test_only_the_end_of_a_long_file_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was never rotated does not slow the start."""
    monkeypatch.setattr(events_file, "READ_BACK_BYTES", 9)
    path = tmp_path / "events.jsonl"
    path.write_text("one\ntwo\nthree\n")

    assert EventsFile(path).tail() == ["wo", "three"]


def test_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    """The exporter does not start and lose every event."""
    with pytest.raises(StartError, match=r"cannot write --events.file .*: No such file or dir"):
        EventsFile(tmp_path / "nowhere" / "events.jsonl")


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


def test_named_pipe_is_written_without_waiting_for_its_reader(tmp_path: Path) -> None:
    """It cannot be read back; what is written waits in the pipe."""
    path = tmp_path / "events"
    os.mkfifo(path)
    file = EventsFile(path)

    assert file.tail() == []
    file._append("one")
    with path.open("rb") as reader:
        assert reader.readline() == b"one\n"


def test_directory_is_no_file(tmp_path: Path) -> None:
    """It is one sentence that names the flag."""
    with pytest.raises(StartError, match=r"cannot write --events.file .*: Is a directory; name a"):
        EventsFile(tmp_path)


def test_file_that_cannot_be_read_back_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its user may append only; that costs lines that are repeated after a restart."""
    path = tmp_path / "events.jsonl"
    file = EventsFile(path)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)

    assert file.tail() == []
    assert f"cannot read back the events file {path}" in caplog.text
