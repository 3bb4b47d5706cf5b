"""Tests of what the dumps of a job are found to say."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankskew.flight_recorder.dumps import read_directory
from rankskew.flight_recorder.match import MISSING, STUCK, CollectiveFinding, compare_dumps
from tests.rankskew.flight_recorder.nccl import entry, transfer, write

GROUPS = {"0": ("default_pg", range(4)), "5": ("tensor", (0, 1)), "6": ("tensor", (2, 3))}


def found(folder: Path) -> list[CollectiveFinding]:
    return list(compare_dumps(*read_directory(folder)).findings)


def only(folder: Path) -> CollectiveFinding:
    (finding,) = found(folder)
    return finding


def test_rank_that_waits_in_another_group_is_a_victim(tmp_path: Path) -> None:
    """Rank 2 is missing from the world because it waits for rank 3 in their own group."""
    world = [entry(1), entry(2, "started")]
    before, own = (
        entry(number, state, process_group=("6", "tensor"), profiling_name="nccl:all_gather")
        for number, state in ((8, "completed"), (9, "started"))
    )
    ranks = {0: world, 1: world, 2: [entry(1), before, own], 3: [entry(1), before]}
    first, second = found(write(tmp_path, ranks, GROUPS))

    assert (first.group, first.ranks, first.begun) == ("6", (3,), (2,))
    assert (second.group, second.ranks, second.begun) == ("0", (2, 3), (0, 1))


BEGUN = [entry(1), entry(2, "started")]
AHEAD = [*BEGUN, entry(3, "scheduled"), entry(4, "scheduled")]


@pytest.mark.parametrize(
    ("ranks", "groups", "told"),
    [
        # NCCL's ranks run ahead: what counts is the first that a rank has not begun.
        ({0: AHEAD, 1: AHEAD, 2: [entry(1)]}, None, (MISSING, 2, (2,), ())),
        # No rank can finish an all-reduce before all have begun it, whatever it says.
        ({0: [entry(1), entry(2)], 1: [entry(1)]}, None, (MISSING, 2, (1,), ())),
        # The code is right, so the network, or a GPU, is what remains.
        ({0: BEGUN, 1: BEGUN}, None, (STUCK, 2, (0, 1), ())),
        # A rank that was killed, or hangs in the driver, leaves no dump.
        ({0: BEGUN, 1: BEGUN}, {"0": ("default_pg", range(3))}, (MISSING, 2, (), (2,))),
    ],
    ids=["asynchronous", "finished", "stuck", "no dump"],
)
def test_ranks_that_are_waited_for_are_named(
    tmp_path: Path,
    ranks: dict[int, list[dict[str, Any]]],
    groups: dict[str, tuple[str, Sequence[int]]] | None,
    told: tuple[object, ...],
) -> None:
    finding = only(write(tmp_path, ranks, groups))

    assert (finding.kind, finding.number, finding.ranks, finding.without_dump) == told


OWN: dict[str, Any] = {"input_sizes": [[7]]}
LONG = [entry(number) for number in range(1, 9)]
ROOT = [entry(0), entry(1, profiling_name="nccl:broadcast")]
PIPELINE = ("7", "pipeline")


@pytest.mark.parametrize(
    "ranks",
    [
        # An all-to-all and the like may give each rank as much as it likes.
        *(
            {0: [entry(1, profiling_name=name)], 1: [entry(1, profiling_name=name, **OWN)]}
            for name in ("nccl:all_to_all", "nccl:scatter", "nccl:gather")
        ),
        # The root of a broadcast may finish before the others begin.
        {0: ROOT, 1: [entry(0)]},
        # A ring that has dropped its oldest entries still has the newest.
        {0: LONG, 1: LONG[5:]},
        # Both sides of a transfer are there.
        {
            0: [transfer(1, "send 0->1", "started", PIPELINE)],
            1: [transfer(1, "recv 1<-0", "started", PIPELINE)],
        },
    ],
)
def test_nothing_is_wrong(tmp_path: Path, ranks: dict[int, list[dict[str, Any]]]) -> None:
    assert (
        found(write(tmp_path, ranks, {"0": ("default_pg", (0, 1)), "7": ("pipeline", (0, 1))}))
        == []
    )


def test_groups_of_one_name_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    """A split of a group gives all its parts one name."""
    halves = [entry(n, process_group=("5", "tensor")) for n in (1, 2)]
    folder = write(tmp_path, {0: halves, 1: halves}, {"5": ("tensor", (0, 1))})
    others = [entry(1, process_group=("5", "tensor"))]
    write(folder, {2: others, 3: others}, {"5": ("tensor", (2, 3))})

    assert found(folder) == []


def test_send_without_a_receive_names_the_receiver(tmp_path: Path) -> None:
    """In a pipeline the stage that waits is not the one to look at."""
    group = ("7", "pipeline")
    ranks = {
        4: [
            transfer(1, "send 0->1", "completed", group),
            transfer(2, "send 0->1", "started", group),
        ],
        6: [transfer(1, "recv 1<-0", "completed", group)],
    }
    finding = only(write(tmp_path, ranks, {"7": ("pipeline", (4, 6))}))

    assert (finding.operation, finding.begun, finding.ranks) == ("send", (4,), (6,))
    assert finding.line == "train (/job/train.py:88)"
