"""`rankskew flight-recorder`: what the dumps of a job say, which may come from anybody.

No GPU wrote the dumps of NCCL here. The fields and their values are those documented in torch 2.13:
torch/distributed/flight_recorder/components/builder.py (entries, pg_config) and types.py (states,
names of operations), and the flight recorder tutorial of the PyTorch documentation.
"""

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import UsageError
from rankskew.commands import flight_recorder
from rankskew.flight_recorder import dumps
from rankskew.flight_recorder.dumps import read_directory
from rankskew.flight_recorder.match import CollectiveFinding, compare_dumps
from tests.printed import assert_golden
from tests.rankskew.gloo_dumps import FIXTURES

Captured = pytest.CaptureFixture[str]
Ranks = Mapping[int, Sequence[Mapping[str, Any]]]
# Description and ranks of each group, by name.
Groups = Mapping[str, tuple[str, Sequence[int]]]
TRAINER = {"name": "train", "filename": "/job/train.py", "line": 88}
INSIDE = {
    "name": "all_reduce",
    "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
    "line": 3245,
}


def entry(number: int, state: str = "completed", **changes: Any) -> dict[str, Any]:
    """Return one operation; number 7 is `collective_seq_id` 7, or `p2p_seq_id` 7 of a transfer."""
    usual = {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [[1024]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [INSIDE, TRAINER],
    }
    return usual | changes


def transfer(number: int, name: str, state: str) -> dict[str, Any]:
    numbers = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}
    group = ("7", "pipeline")
    return entry(number, state, profiling_name=f"nccl:{name}", process_group=group, **numbers)


def write(folder: Path, ranks: Ranks, groups: Groups | None = None) -> Path:
    """Write a dump for each of *ranks*."""
    folder.mkdir(exist_ok=True)
    named = groups or {"0": ("default_pg", sorted(ranks))}
    config = {
        name: {"name": name, "desc": description, "ranks": str(list(members))}
        for name, (description, members) in named.items()
    }
    for rank, entries in ranks.items():
        mine = {name: each for name, each in config.items() if rank in named[name][1]}
        dump = {"version": "2.10", "pg_config": mine, "pg_status": {}, "entries": list(entries)}
        (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    return folder


BEGUN = [entry(1), entry(2, "started")]


# ---- The command ---------------------------------------------------------------------------------


def said(capsys: Captured, folder: Path, *flags: str) -> tuple[int, str]:
    status = flight_recorder.run([str(folder), *flags])
    return status, capsys.readouterr().out


def test_texts_are_the_golden_ones(capsys: Captured, tmp_path: Path) -> None:
    """Who waits, in what, for whom, and where the code is; the status is that of what is known.

    A rank that left no dump may be the one: nobody can tell, unless the others wait for it.
    """
    done = [entry(1)]
    three = {"0": ("default_pg", range(3))}
    folders = {
        "missing": (FIXTURES / "missing", 1),
        "size": (FIXTURES / "size", 1),
        "type": (FIXTURES / "type", 1),
        "fine": (FIXTURES / "fine", 0),
        "no dump": (write(tmp_path / "a", {0: done, 2: done}, three), 2),
        "no dump of a hang": (write(tmp_path / "b", {0: BEGUN}, three), 1),
        "all stuck": (write(tmp_path / "c", {rank: BEGUN for rank in range(12)}), 1),
        "one stuck": (write(tmp_path / "d", {0: BEGUN, 1: [entry(1), entry(2)]}), 1),
    }
    texts = {}
    for name, (folder, known) in folders.items():
        status, texts[name] = said(capsys, folder)
        assert status == known
    assert_golden("flight_recorder", texts)


def test_json_has_the_same(capsys: Captured) -> None:
    status, text = said(capsys, FIXTURES / "missing", "--json")
    document = json.loads(text)

    assert (status, document["dumps"], document["ranks_without_dump"]) == (1, [0, 1, 2, 3], [])
    (finding,) = document["findings"]
    assert (finding["kind"], finding["ranks"], finding["number"]) == ("missing", [2], 5)
    assert finding["sentence"].endswith("rank 2 has not begun it.")


def test_dump_that_was_cut_off_hides_no_other(capsys: Captured, tmp_path: Path) -> None:
    """A hang is when dumps are cut off: the others are compared, and its rank may be the one."""
    write(tmp_path, {rank: BEGUN for rank in range(4)})
    cut = tmp_path / "nccl_trace_rank_3"
    cut.write_bytes(cut.read_bytes()[:100])
    status, text = said(capsys, tmp_path)
    document = json.loads(said(capsys, tmp_path, "--json")[1])

    problem = f"{cut} is no dump of torch's flight recorder, or is cut off"
    assert status == 1
    assert problem in " ".join(text.split())
    assert "; rank 3 left no dump that can be read." in text
    assert (document["dumps"], document["ranks_without_dump"]) == ([0, 1, 2], [3])
    assert document["unreadable"] == [problem]


def test_too_few_dumps_leave_it_open(tmp_path: Path) -> None:
    """Where the groups are not named, as those of gloo, nothing else says that a rank exists.

    torch writes none unless it was told to before the start.
    """
    with pytest.raises(UsageError, match=r"has no dump, .* if TORCH_FR_BUFFER_SIZE is set"):
        flight_recorder.run([str(tmp_path)])
    write(tmp_path, {0: [entry(1)], 1: [entry(1)]})
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"")

    assert flight_recorder.run([str(tmp_path)]) == 2


# ---- Who is waited for ---------------------------------------------------------------------------


def found(folder: Path) -> list[CollectiveFinding]:
    return list(compare_dumps(*read_directory(folder)).findings)


def test_rank_that_waits_in_another_group_is_a_victim(tmp_path: Path) -> None:
    """Rank 2 is missing from the world because it waits for rank 3 in their own group."""
    groups = {"0": ("default_pg", range(4)), "5": ("tensor", (0, 1)), "6": ("tensor", (2, 3))}
    before, own = (
        entry(number, state, process_group=("6", "tensor"), profiling_name="nccl:all_gather")
        for number, state in ((8, "completed"), (9, "started"))
    )
    ranks = {0: BEGUN, 1: BEGUN, 2: [entry(1), before, own], 3: [entry(1), before]}
    first, second = found(write(tmp_path, ranks, groups))

    assert (first.group, first.ranks, first.begun) == ("6", (3,), (2,))
    assert (second.group, second.ranks, second.begun) == ("0", (2, 3), (0, 1))


def test_first_that_a_rank_has_not_begun_counts(tmp_path: Path) -> None:
    """NCCL's ranks run ahead; and no rank can finish an all-reduce before all have begun it."""
    ahead = [*BEGUN, entry(3, "scheduled"), entry(4, "scheduled")]
    for name, ranks in (
        ("asynchronous", {0: ahead, 1: ahead, 2: [entry(1)]}),
        ("finished", {0: [entry(1), entry(2)], 1: [entry(1), entry(2)], 2: [entry(1)]}),
    ):
        (finding,) = found(write(tmp_path / name, ranks))
        assert (finding.kind, finding.number, finding.ranks) == ("missing", 2, (2,))


def test_send_without_a_receive_names_the_receiver(tmp_path: Path) -> None:
    """In a pipeline the stage that waits is not the one to look at."""
    ranks = {
        4: [transfer(1, "send 0->1", "completed"), transfer(2, "send 0->1", "started")],
        6: [transfer(1, "recv 1<-0", "completed")],
    }
    (finding,) = found(write(tmp_path, ranks, {"7": ("pipeline", (4, 6))}))

    assert (finding.operation, finding.begun, finding.ranks) == ("send", (4,), (6,))
    assert finding.line == "train (/job/train.py:88)"


OWN: dict[str, Any] = {"input_sizes": [[7]]}
LONG = [entry(number) for number in range(1, 9)]
ROOT = [entry(0), entry(1, profiling_name="nccl:broadcast")]


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
        {0: [transfer(1, "send 0->1", "started")], 1: [transfer(1, "recv 1<-0", "started")]},
    ],
)
def test_nothing_is_wrong(tmp_path: Path, ranks: Ranks) -> None:
    groups = {"0": ("default_pg", (0, 1)), "7": ("pipeline", (0, 1))}

    assert found(write(tmp_path, ranks, groups)) == []


def test_groups_of_one_name_are_told_apart_by_their_ranks(tmp_path: Path) -> None:
    """A split of a group gives all its parts one name."""
    halves = [entry(n, process_group=("5", "tensor")) for n in (1, 2)]
    folder = write(tmp_path, {0: halves, 1: halves}, {"5": ("tensor", (0, 1))})
    write(folder, {2: halves[:1], 3: halves[:1]}, {"5": ("tensor", (2, 3))})

    assert found(folder) == []


# ---- Reading -------------------------------------------------------------------------------------


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
    """Other files are passed over; dumps of two jobs would be compared with each other.

    The name of a function must not move the cursor of whoever reads it.
    """
    frame = {"name": "a\x1b[2Jb", "filename": "/job/x.py", "line": 1}
    write(tmp_path, {0: [entry(1)], 1: [entry(1, frames=[frame])]})
    (tmp_path / "nccl_trace_rank_1").rename(tmp_path / "nccl_trace_rank_1_1764300000")
    for stray in ("notes.txt", "README2", "core.123", "rank_99999999"):
        (tmp_path / stray).write_text("x")
    (tmp_path / "folder_rank_3").mkdir()
    read, unreadable = read_directory(tmp_path)

    assert ([dump.rank for dump in read], unreadable) == ([0, 1], {})
    assert read[1].entries[0].frames == (("a?[2Jb", "/job/x.py", 1),)
    (tmp_path / "comm_lib_trace_rank_0").write_bytes(b"x")
    with pytest.raises(UsageError, match="two dumps of rank 0, comm_lib_trace_rank_0 and nccl_tr"):
        read_directory(tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*nowhere: No such file"):
        read_directory(tmp_path / "nowhere")


NO_DUMP = "is no dump of torch's flight recorder"
RANKS = b'{"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "%s"}}}'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x80\x02}q", NO_DUMP),
        (b"hello", NO_DUMP),
        (b"{", NO_DUMP),
        (b"[1]", NO_DUMP),
        (b'{"version": "2.10", "entries": [{}]}', NO_DUMP),
        (RANKS % b"__import__(1)", NO_DUMP),
        (RANKS % b"[0, 1764300000]", NO_DUMP),
        (pickle.dumps(7), NO_DUMP),
        (b"", "is empty: its process ended while it wrote"),
    ],
)
def test_what_is_no_dump_is_said_in_one_sentence(tmp_path: Path, data: bytes, problem: str) -> None:
    """A file that was cut off, or is something else, has a message with its name."""
    (tmp_path / "trace_rank_0").write_bytes(data)
    read, unreadable = read_directory(tmp_path)

    assert (read, list(unreadable)) == ([], [0])
    assert f"trace_rank_0 {problem}" in unreadable[0]


class Harmful:
    """A pickle of this runs a command where it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._mark}",)


def test_dumps_of_a_stranger_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write where they are gets no shell of the reader, and does not block it.

    Only files are opened, of a size that does not take all memory, and no link is followed.
    """
    mark = tmp_path / "was_run"
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": Harmful(mark)}))
    os.mkfifo(tmp_path / "rank_1")
    (tmp_path / "rank_2").symlink_to("/dev/zero")
    (tmp_path / "rank_3").write_bytes(b"x" * 1001)
    monkeypatch.setattr(dumps, "LARGEST_BYTES", 1000)
    read, unreadable = read_directory(tmp_path)

    assert not read
    assert "_0 is refused: it would run posix.system, and a dump" in unreadable[0]
    assert not mark.exists()
    assert "rank_1 is not a file" in unreadable[1]
    assert "cannot read" in unreadable[2]
    assert "is larger than" in unreadable[3]
