"""Tests of reading dumps, which may come from anybody."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import UsageError
from rankskew.flight_recorder import dumps
from rankskew.flight_recorder.dumps import read_directory
from tests.rankskew.flight_recorder.nccl import FIXTURES, entry, write


def test_ranks_and_entries_of_torch_are_read() -> None:
    """The rank is in the file's name, the rest in the pickle that torch 2.13 wrote."""
    read, unreadable = read_directory(FIXTURES / "missing")

    assert not unreadable
    assert [dump.rank for dump in read] == [0, 1, 2, 3]
    assert {dump.version for dump in read} == {"2.10"}
    assert [entry.operation for entry in read[2].entries] == ["all_reduce"] * 3 + ["barrier"]
    last = read[0].entries[-1]
    assert (last.number, last.input_sizes, last.types) == (5, ((8,),), ("Float", "Float"))
    assert (last.finished, read[0].entries[0].finished) == (False, True)


def test_directory_has_one_dump_of_each_rank(tmp_path: Path) -> None:
    """Other files are passed over; dumps of two jobs would be compared with each other."""
    write(tmp_path, {0: [entry(1)], 1: [entry(1)]})
    (tmp_path / "nccl_trace_rank_1").rename(tmp_path / "nccl_trace_rank_1_1764300000")
    for stray in ("notes.txt", "README2", "core.123", "rank_99999999"):
        (tmp_path / stray).write_text("x")
    (tmp_path / "folder_rank_3").mkdir()

    read, unreadable = read_directory(tmp_path)

    assert ([dump.rank for dump in read], unreadable) == ([0, 1], {})
    (tmp_path / "comm_lib_trace_rank_0").write_bytes(b"x")
    with pytest.raises(UsageError, match="two dumps of rank 0, comm_lib_trace_rank_0 and nccl_tr"):
        read_directory(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*nowhere: No such file"):
        read_directory(tmp_path / "nowhere")


class Harmful:
    """A pickle of this runs a command where it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._mark}",)


def test_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """Whoever can write a dump must not get a shell of whoever reads it."""
    mark = tmp_path / "was_run"
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": Harmful(mark)}))

    assert "_0 is refused: it would run posix.system, and a dump" in unreadable(tmp_path)
    assert not mark.exists()


def unreadable(folder: Path) -> str:
    """Return what is wrong with the only dump in *folder*, that of rank 0."""
    read, wrong = read_directory(folder)
    assert (read, list(wrong)) == ([], [0])
    return wrong[0]


NO_DUMP = "is no dump of torch's flight recorder"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x80\x02}q", NO_DUMP),
        (b"hello", NO_DUMP),
        (b"{", NO_DUMP),
        (b"[1]", NO_DUMP),
        (b'{"version": "2.10", "entries": [{}]}', NO_DUMP),
        (
            b'{"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "__import__(1)"}}}',
            NO_DUMP,
        ),
        (
            b'{"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "[0, 1764300000]"}}}',
            NO_DUMP,
        ),
        (pickle.dumps(7), NO_DUMP),
        (b"", "is empty: its process ended while it wrote"),
    ],
)
def test_what_is_no_dump_is_said_in_one_sentence(tmp_path: Path, data: bytes, problem: str) -> None:
    """A file that was cut off, or is something else, has a message with its name."""
    (tmp_path / "trace_rank_0").write_bytes(data)

    assert f"trace_rank_0 {problem}" in unreadable(tmp_path)


def test_only_files_are_opened_and_of_no_size_that_takes_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write where the dumps are does not block the command, or lead it elsewhere."""
    monkeypatch.setattr(dumps, "LARGEST_BYTES", 10)
    (tmp_path / "rank_0").write_bytes(b"x" * 11)
    os.mkfifo(tmp_path / "rank_1")
    (tmp_path / "rank_2").symlink_to("/dev/zero")

    read, wrong = read_directory(tmp_path)

    assert not read
    assert "is larger than" in wrong[0]
    assert "rank_1 is not a file" in wrong[1]
    assert "cannot read" in wrong[2]


def test_text_is_fit_for_a_terminal(tmp_path: Path) -> None:
    """The name of a function must not move the cursor of whoever reads it."""
    frame = {"name": "a\x1b[2Jb", "filename": "/job/x.py", "line": 1}
    write(tmp_path, {0: [entry(1, frames=[frame])]})

    (dump,), _ = read_directory(tmp_path)
    assert dump.entries[0].frames == (("a?[2Jb", "/job/x.py", 1),)
