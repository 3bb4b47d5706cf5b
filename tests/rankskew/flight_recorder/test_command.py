"""Tests of `rankskew flight-recorder`."""

import json
from pathlib import Path

import pytest

from exporter.errors import UsageError
from rankskew.commands import flight_recorder
from tests.rankskew.flight_recorder.nccl import FIXTURES, entry, write
from tests.rankskew.golden import assert_golden


def said(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> tuple[int, str]:
    status = flight_recorder.run([str(folder), *flags])
    return status, capsys.readouterr().out


def test_texts_are_the_golden_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Who waits, in what, for whom, and where the code is; the status is that of what is known.

    A rank that left no dump may be the one: nobody can tell, unless the others wait for it.
    """
    done, begun = [entry(1)], [entry(1), entry(2, "started")]
    three = {"0": ("default_pg", range(3))}
    folders = {
        "missing": (FIXTURES / "missing", 1),
        "size": (FIXTURES / "size", 1),
        "type": (FIXTURES / "type", 1),
        "fine": (FIXTURES / "fine", 0),
        "no dump": (write(tmp_path / "a", {0: done, 2: done}, three), 2),
        "no dump of a hang": (write(tmp_path / "b", {0: begun}, three), 1),
        "all stuck": (write(tmp_path / "c", {rank: begun for rank in range(12)}), 1),
        "one stuck": (write(tmp_path / "d", {0: begun, 1: [entry(1), entry(2)]}), 1),
    }
    texts = {}
    for name, (folder, known) in folders.items():
        status, texts[name] = said(capsys, folder)
        assert status == known
    assert_golden("flight_recorder", texts)


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, FIXTURES / "missing", "--json")
    document = json.loads(text)

    assert (status, document["dumps"], document["ranks_without_dump"]) == (1, [0, 1, 2, 3], [])
    (finding,) = document["findings"]
    assert (finding["kind"], finding["ranks"], finding["number"]) == ("missing", [2], 5)
    assert finding["sentence"].endswith("rank 2 has not begun it.")


def test_dump_that_was_cut_off_hides_no_other(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A hang is when dumps are cut off: the others are compared, and its rank may be the one."""
    begun = [entry(1), entry(2, "started")]
    write(tmp_path, {rank: begun for rank in range(4)})
    cut = tmp_path / "nccl_trace_rank_3"
    cut.write_bytes(cut.read_bytes()[:100])

    status, text = said(capsys, tmp_path)

    problem = f"{cut} is no dump of torch's flight recorder, or is cut off"
    assert status == 1
    assert problem in " ".join(text.split())
    assert "; rank 3 left no dump that can be read." in text
    document = json.loads(said(capsys, tmp_path, "--json")[1])
    assert (document["dumps"], document["ranks_without_dump"]) == ([0, 1, 2], [3])
    assert document["unreadable"] == [problem]


def test_last_rank_whose_dump_cannot_be_read_leaves_it_open(tmp_path: Path) -> None:
    """Where the groups are not named, as those of gloo, nothing else says that it exists."""
    write(tmp_path, {0: [entry(1)], 1: [entry(1)]})
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"")

    assert flight_recorder.run([str(tmp_path)]) == 2


def test_directory_without_dumps_says_where_they_come_from(tmp_path: Path) -> None:
    """torch writes none unless it was told to before the start."""
    with pytest.raises(UsageError, match=r"has no dump, .* if TORCH_FR_BUFFER_SIZE is set"):
        flight_recorder.run([str(tmp_path)])
