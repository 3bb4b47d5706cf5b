"""What people say is kept line by line; a broken line costs nothing else."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from exporter.errors import StartError
from rankskew.report.confirmations import (
    Confirmation,
    Confirmations,
    add,
    default_file,
    precision,
    read,
)


def said(incident: str = "1112-0604-rha3", verdict: str = "yes", note: str = "") -> Confirmation:
    who = {"cluster": "eu", "job_id": "llama", "rank": "3"}
    return Confirmation(incident, verdict, "RankskewStraggler", who, 60.0, 100.0, "ada", note)


def test_newest_counts(tmp_path: Path) -> None:
    """Somebody may change their mind; the file keeps both lines."""
    file = tmp_path / "new" / "said.jsonl"
    for each in (said(verdict="no"), said("1113-0000-aaaa"), said(note="ümlaut\nand a break")):
        add(file, each)
    found = read(file)

    assert len(found.lines) == 3
    assert list(found.newest) == ["1113-0000-aaaa", "1112-0604-rha3"]
    assert found.newest["1112-0604-rha3"].verdict == "yes"
    assert found.newest["1112-0604-rha3"].note == "ümlaut?and a break"
    assert found.broken == []


@pytest.mark.parametrize(
    "broken",
    [
        b'{"incident": "1112-0604-rha3", "verd',
        b"\xff\xfe\x00garbage",
        b"[1, 2]",
        b'{"incident": "x", "verdict": "maybe", "alert": "a", "began": 1}',
        b'{"incident": "x", "verdict": "yes", "alert": "a", "began": "then"}',
        b"[" * 100_000,
    ],
    ids=["cut", "bytes", "no object", "no verdict", "no time", "deep"],
)
def test_broken_line_loses_nothing_else(tmp_path: Path, broken: bytes) -> None:
    """The lines before and after it count, and its number is told."""
    assert read(tmp_path / "none").lines == []
    file = tmp_path / "said.jsonl"
    add(file, said("1111-0000-aaaa"))
    with file.open("ab") as open_file:
        open_file.write(broken)  # Who was killed while writing leaves no line break.
    add(file, said("1113-0000-aaaa"))
    found = read(file)

    assert [each.incident for each in found.lines] == ["1111-0000-aaaa", "1113-0000-aaaa"]
    assert found.broken == [2]


def test_many_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each has the file for itself while it writes."""
    file = tmp_path / "said.jsonl"
    ids = [f"1112-06{n:02}-aaaa" for n in range(60)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: add(file, said(each, note="x" * 5000)), ids))
    found = read(file)

    assert sorted(each.incident for each in found.lines) == ids
    assert found.broken == []


@pytest.mark.parametrize("do", [read, lambda path: add(path, said())], ids=["read", "write"])
def test_refused_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: Callable[[Path], object]
) -> None:
    """Root may read anything, so the system's refusal is played."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "x")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StartError, match=r"cannot (read|write) .*/said: Permission denied"):
        do(tmp_path / "said")


def test_file_is_in_the_directory_for_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME, if it is a path from the root, as its specification says."""
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_file() == Path("/state/rankskew/confirmations.jsonl")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_file() == Path("/home/ada/.local/state/rankskew/confirmations.jsonl")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert default_file() == Path("rankskew/confirmations.jsonl")


def test_confirmation_fits_an_incident_whose_begin_moved() -> None:
    """A report with a longer step finds a begin a little later, and so another id."""
    one, who = said(), dict(said().who)
    found = Confirmations([said(verdict="no"), one])

    assert found.of("1112-0605-abcd", one.alert, who, 120.0, gap_seconds=600) == one
    assert found.of(one.incident, one.alert, {}, 5000.0, gap_seconds=600) == one
    for alert, other, begin in (
        (one.alert, who, 5000.0),
        (one.alert, {"rank": "4"}, 60.0),
        ("RankskewSlowNode", who, 60.0),
    ):
        assert found.of("1112-0605-abcd", alert, other, begin, gap_seconds=600) is None


# ---- Precision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong", "low", "high"),
    [
        # R: prop.test(9, 10, correct = FALSE) and so on.
        (9, 1, 0.5958, 0.9821),
        (0, 10, 0.0, 0.2775),
        (10, 0, 0.7225, 1.0),
        (1, 0, 0.2065, 1.0),
        (45, 5, 0.7864, 0.9565),
    ],
)
def test_interval_is_wilson(right: int, wrong: int, low: float, high: float) -> None:
    """It stays within 0 and 1 and is not a point when all are right."""
    found = precision(["yes"] * right + ["no"] * wrong + ["unsure", None, None])

    assert found.ratio == right / (right + wrong)
    assert found.interval is not None
    assert list(found.interval) == [pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4)]
    assert (found.unsure, found.unjudged) == (1, 2)
    # Nobody has judged: then there is no precision, not 0 %.
    nobody = precision([None, "unsure"])
    assert (nobody.ratio, nobody.interval) == (None, None)
