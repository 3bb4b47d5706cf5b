"""Tests of `rankskew flight-recorder`."""

import json
from pathlib import Path

import pytest

from exporter.errors import UsageError
from rankskew.commands import flight_recorder
from tests.rankskew.flight_recorder.gloo_dumps import FIXTURES
from tests.rankskew.flight_recorder.nccl import entry, write


def said(capsys: pytest.CaptureFixture[str], folder: Path, *flags: str) -> tuple[int, str]:
    """Return the exit status and what was printed."""
    status = flight_recorder.run([str(folder), *flags])
    return status, capsys.readouterr().out


def test_missing_rank_is_the_first_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Who waits, in what, for whom, and where the code is."""
    status, text = said(capsys, FIXTURES / "missing")
    lines = text.splitlines()

    assert status == 1
    assert lines[0] == "4 dumps with 19 operations."
    assert lines[2] == (
        "Ranks 0, 1 and 3 wait in all_reduce 5 in group 0 (default_pg); rank 2 has not begun it."
    )
    assert lines[3] == "  all_reduce of Float [8]"
    assert lines[4].startswith("  begun at all_reduce (/repo/")
    assert lines[5].startswith("  rank 2 was last in barrier 4 of default_pg, finished, begun at")
    assert lines[6] == "  before it, all ranks agreed on barrier 4"


def test_mismatch_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What the rank began instead."""
    status, text = said(capsys, FIXTURES / "size")

    assert status == 1
    assert "Rank 2 began something else than all_reduce 5 in group 0 (default_pg)." in text
    assert "  rank 2: all_reduce of Float [16], at go_wrong (/repo/" in text


def test_nothing_wrong_is_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that goes on has nothing to name."""
    status, text = said(capsys, FIXTURES / "fine")

    assert (status, text.splitlines()[1:]) == (
        0,
        ["Nothing is wrong: the ranks have begun the same collectives, and finished them."],
    )


def test_missing_dump_without_a_finding_is_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whoever left no dump may be the one, and nobody can tell."""
    folder = write(tmp_path, {0: [entry(1)], 2: [entry(1)]}, {"0": ("default_pg", range(3))})
    status, text = said(capsys, folder)

    assert status == 2
    assert "rank 1 left none, so nobody can tell" in text


def test_missing_dump_of_a_hang_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The others wait: the rank that cannot even dump is where to look."""
    begun = [entry(1), entry(2, "started")]
    status, text = said(capsys, write(tmp_path, {0: begun}, {"0": ("default_pg", range(2))}))

    assert status == 1
    assert "Rank 0 waits in all_reduce 2 in group 0 (default_pg); rank 1 left no dump." in text


def test_stuck_collective_points_to_the_network(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Nobody is missing and nobody differs."""
    begun = [entry(1, "started")]
    _, text = said(capsys, write(tmp_path, {0: begun, 1: begun}))

    assert "All ranks are in all_reduce 1 in group 0 (default_pg), and none has finished it" in text


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts need not read sentences."""
    status, text = said(capsys, FIXTURES / "missing", "--json")
    document = json.loads(text)

    assert (status, document["dumps"], document["ranks_without_dump"]) == (1, [0, 1, 2, 3], [])
    (finding,) = document["findings"]
    assert (finding["kind"], finding["ranks"], finding["number"]) == ("missing", [2], 5)
    assert finding["sentence"].endswith("rank 2 has not begun it.")


def test_directory_without_dumps_says_where_they_come_from(tmp_path: Path) -> None:
    """torch writes none unless it was told to before the start."""
    with pytest.raises(UsageError, match=r"has no dump, .* if TORCH_FR_BUFFER_SIZE is set"):
        flight_recorder.run([str(tmp_path)])
