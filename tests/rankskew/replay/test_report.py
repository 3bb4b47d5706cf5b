"""What a replay prints: the text at its end, and how far it is meanwhile."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankskew.commands.replay import ProgressLine
from rankskew.replay.findings import TraceFinding
from rankskew.replay.replay import replay, report
from rankskew.replay.traces import read_traces
from tests.exporter.recorded import record
from tests.rankskew.golden import assert_golden
from tests.rankskew.replay.test_replay import without


def told(path: Path, **changes: Any) -> str:
    """Return the text about the trace at *path*, with *changes* of what was found."""
    return report([replace(replay(run), **changes) for run in read_traces([path])])


def test_texts_are_the_golden_ones(tmp_path: Path) -> None:
    """One line for each finding, the four kinds with the ranks and stages that cost, each group.

    A rank may be late without making the steps longer; each attempt is a job of its own; what
    cannot be accounted for is said, and is no error.
    """
    shape: dict[str, Any] = {"noise": 0.0, "steps": 120}
    late = record(tmp_path / "a.csv", late=lambda rank, step: 0.5 * (rank == 3), **shape)
    texts = {"late rank": told(late), "no slowdown": told(late, slowdown=1.004)}
    kinds: dict[str, dict[str, Any]] = {
        "slow node": {"late": lambda rank, step: 0.3 * (rank in (2, 3))},
        "pauses": {"late": lambda rank, step: 5.0 * (rank == 3 and step % 50 == 49), "steps": 600},
        "rotating": {"late": lambda rank, step: 0.5 * (rank == step * 3 % 8), "steps": 400},
        "group": {"group_work": (1.0, 1.3), "steps": 400},
        "common": {"communication": 0.8, "steps": 400},
    }
    for name, kind in kinds.items():
        texts[name] = told(record(tmp_path / "b.csv", **(shape | kind)))
    texts["few rows"] = told(without(late, lambda rank, step: rank == 7 and step % 10 > 0))
    short = record(tmp_path / "c.csv", ranks=2, steps=3, noise=0.0)
    texts["a step lacks a rank"] = told(without(short, lambda *at: at == (1, 2)))
    texts["none has all"] = told(without(short, lambda rank, step: rank == step % 2))
    assert_golden("replay", texts)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((), "data of peer group all takes"),
        ((0, 1, 3), "data of ranks 0, 1 and 3 of peer group all takes"),
        # No more of them are known.
        (tuple(range(32)), "data of at least ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more of peer"),
    ],
    ids=["all", "some", "many"],
)
def test_change_names_the_ranks_that_are_slower(
    tmp_path: Path, ranks: tuple[int, ...], said: str
) -> None:
    """As the JSON does, if not all ranks of the peer group are."""
    change = TraceFinding(
        kind="change",
        slower_ranks=ranks,
        peer_group="all",
        stage="data",
        ratio=1.5,
        onset_s=60.0,
        named_s=90.0,
    )
    short = record(tmp_path / "a.csv", ranks=2, steps=3, noise=0.0)
    assert said in told(short, findings=[change])


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_overwritten_and_taken_away() -> None:
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
def test_no_progress_is_written_where_nobody_waits(stream: io.StringIO) -> None:
    times = iter([0.0, 0.5 if stream.isatty() else 99.0])
    line = ProgressLine("judging job j", stream, lambda: next(times))
    line(0.5)
    line.clear()

    assert stream.getvalue() == ""
