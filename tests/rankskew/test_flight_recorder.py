"""`rankskew flight-recorder`: what the dumps of a job say, which may come from anybody.

torch wrote those in tests/fixtures/flight_recorder, with `_dump_fr_trace()`. 2.13 did in four gloo
ranks, of which rank 2 did something else; the releases in the names did in two, of which rank 1
left out the last all-reduce. Where those did the same it was `_dump_fr_trace_json()`. A
FlightRecorderHook was attached to gloo in 2.14, and to the fake backend in 2.15, where it passes
over gloo. No GPU wrote the dumps of NCCL here: their fields and values are
those documented in torch/distributed/flight_recorder/components/builder.py (entries, pg_config) and
types.py (states, names of operations), and in the tutorial of the PyTorch documentation.
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
from tests.printed import assert_golden

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
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + number,
        "input_sizes": [[1024]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        # torch has it for NCCL with TORCH_NCCL_ENABLE_TIMING.
        "time_discovered_started_ns": None if state == "scheduled" else 1_700_000_000_000_000_000,
        "is_p2p": False,
        "frames": [INSIDE, TRAINER],
    }
    return usual | changes


def transfer(number: int, name: str, state: str) -> dict[str, Any]:
    numbers = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}
    group = ("7", "pipeline")
    return entry(number, state, profiling_name=f"nccl:{name}", process_group=group, **numbers)


def coalesced(state: str, *parts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return *parts* as they are recorded if they are begun together, with their end after them."""
    begun = {"state": "scheduled", "time_discovered_started_ns": None}
    end = {"is_p2p": False, "profiling_name": "nccl:coalesced", "input_sizes": []}
    return [*[part | begun for part in parts], entry(0, state) | parts[0] | end]


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


# ---- Who is waited for ---------------------------------------------------------------------------


def said(capsys: Captured, folder: Path, *flags: str) -> tuple[int, str]:
    status = flight_recorder.run([str(folder), *flags])
    return status, capsys.readouterr().out


FIXTURES = Path(__file__).parents[1] / "fixtures" / "flight_recorder"
DONE = [entry(1)]
BEGUN = [entry(1), entry(2, "started")]
# NCCL's ranks run ahead; and no rank can finish an all-reduce before all have begun it.
AHEAD = [*BEGUN, entry(3, "scheduled"), entry(4, "scheduled")]
FINISHED = [entry(1), entry(2)]
QUEUED = [entry(4, "scheduled"), entry(5, "scheduled")]
UNTIMED = [entry(1, time_discovered_started_ns=None), entry(2, "scheduled")]
HOOKED = [
    entry(number, "scheduled", profiling_name="c10d:allreduce", retired=True) for number in (1, 2)
]
# The hook of 2.15 with a backend that says what ended, and then that it had begun.
ENDED, HELD = (
    entry(
        number,
        state,
        profiling_name="nccl2:broadcast",
        time_discovered_completed_ns=entry(number, state)["time_discovered_started_ns"],
    )
    for number, state in ((1, "completed"), (2, "scheduled"))
)
PAST = [entry(number) for number in (100, 101, 32_100)]
LONG = [entry(number) for number in range(1, 9)]
DROPPED = coalesced("completed", entry(5))[-1] | {"record_id": 1234}
OWN = entry(1, profiling_name="nccl:all_to_all", input_sizes=[[7]])
GATHERED, GATHERS = (
    entry(number, state, process_group=("6", "tensor"), profiling_name="nccl:all_gather")
    for number, state in ((8, "completed"), (9, "started"))
)
HALVES = [entry(number, process_group=("5", "tensor")) for number in (1, 2)]
SENDS = [transfer(1, "send 0->1", "completed"), transfer(2, "send 0->1", "started")]
RECEIVED = coalesced("completed", transfer(1, "recv 1<-0", "completed"))
UNEVEN = coalesced("completed", entry(1, profiling_name="nccl:_broadcast_oop"))
WORLD = ("default_pg", range(3))
# The dumps of ranks, their groups, and the status.
STORIES: Mapping[str, tuple[Ranks, Groups | None, int]] = {
    # A rank that left no dump may be the one: nobody can tell, unless the others wait for it.
    "no dump": ({0: DONE, 2: DONE}, {"0": WORLD}, 2),
    "no dump of a hang": ({0: BEGUN}, {"0": WORLD}, 1),
    "all stuck": ({rank: BEGUN for rank in range(12)}, None, 1),
    "one stuck": ({0: BEGUN, 1: FINISHED}, None, 1),
    "asynchronous": ({0: AHEAD, 1: AHEAD, 2: DONE}, None, 1),
    # The ranks queue what follows: none is missing from 5, nor stuck in 4.
    "queued behind it": (
        {rank: [*BEGUN, entry(3, "scheduled"), *QUEUED[: 2 - (rank == 3)]] for rank in range(4)},
        None,
        1,
    ),
    "its device does not reach it": (
        {rank: [entry(1), entry(2, "scheduled" if rank == 3 else "started")] for rank in range(4)},
        None,
        1,
    ),
    "starts are not recorded": ({rank: UNTIMED for rank in range(2)}, None, 1),
    # torch's recorder of backends without their own may know only that each was begun.
    "a healthy job of another backend": ({0: HOOKED, 1: HOOKED}, None, 2),
    "another backend that tells the ends": (
        {0: [ENDED, ENDED | {"collective_seq_id": 2}], 1: [ENDED, HELD]},
        None,
        1,
    ),
    "another backend hangs": ({0: HOOKED, 1: HOOKED[:1]}, None, 1),
    "skips collectives": ({0: PAST, 1: PAST, 2: [entry(100)]}, None, 1),
    "finished by others": ({0: FINISHED, 1: FINISHED, 2: DONE}, None, 1),
    # Rank 2 is missing from the world because it waits for rank 3 in their own group.
    "waits in another group": (
        {0: BEGUN, 1: BEGUN, 2: [*DONE, GATHERED, GATHERS], 3: [*DONE, GATHERED]},
        {"0": ("default_pg", range(4)), "5": ("tensor", (0, 1)), "6": ("tensor", (2, 3))},
        1,
    ),
    # What is stuck is why the others wait.
    "stuck in another group": (
        {0: BEGUN, 1: BEGUN, 2: [*DONE, GATHERED, GATHERS], 3: [*DONE, GATHERED, GATHERS]},
        {"0": ("default_pg", range(4)), "5": ("tensor", (0, 1)), "6": ("tensor", (2, 3))},
        1,
    ),
    # The end of transfers that the buffer has dropped is no collective.
    "an end without its parts": ({0: LONG, 1: [DROPPED, *LONG[5:]]}, None, 0),
    # In a pipeline the stage that waits is not the one to look at.
    "send without a receive": (
        {4: SENDS, 6: [transfer(1, "recv 1<-0", "completed")]},
        {"7": ("pipeline", (4, 6))},
        1,
    ),
    "both sides of a transfer": (
        {0: [transfer(1, "send 0->1", "started")], 1: [transfer(1, "recv 1<-0", "started")]},
        {"7": ("pipeline", (0, 1))},
        1,
    ),
    # Of those that were begun together the last entry has the end: the first are over.
    "transfers at once, and one missing": (
        {0: [*coalesced("completed", SENDS[0]), *coalesced("started", SENDS[1])], 1: RECEIVED},
        {"7": ("pipeline", (0, 1))},
        1,
    ),
    "a hang after a gather of uneven sizes": (
        {rank: [*UNEVEN, *[entry(2, "started")][: 2 - rank]] for rank in range(3)},
        None,
        1,
    ),
    # It may give each rank as much as it likes.
    "all-to-all": ({0: [entry(1, profiling_name="nccl:all_to_all")], 1: [OWN]}, None, 0),
    # The root of a broadcast may finish before the others begin.
    "broadcast": (
        {0: [entry(0), entry(1, profiling_name="nccl:broadcast")], 1: [entry(0)]},
        None,
        0,
    ),
    # A ring that has dropped its oldest entries still has the newest.
    "a full ring": ({0: LONG, 1: LONG[5:]}, None, 0),
}


def test_stories_are_the_golden_ones(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits, in what, for whom, and where the code is; the status is that of what is known."""
    monkeypatch.chdir(tmp_path)
    folders = {
        name: (write(Path(name), ranks, groups), known)
        for name, (ranks, groups, known) in STORIES.items()
    }
    folders |= {
        name: (FIXTURES / name, name != "fine")
        for name in ("missing", "size", "type", "fine", "hook_2.14", "hook_2.15")
    }
    # A split of a group gives all its parts one name: their ranks tell them apart.
    parts = write(Path("parts"), {0: HALVES, 1: HALVES}, {"5": ("tensor", (0, 1))})
    write(parts, {2: HALVES[:1], 3: HALVES[:1]}, {"5": ("tensor", (2, 3))})
    # A hang is when dumps are cut off: the others are compared, and its rank may be the one.
    cut = write(Path("cut off"), {rank: BEGUN for rank in range(4)})
    (cut / "nccl_trace_rank_3").write_bytes((cut / "nccl_trace_rank_3").read_bytes()[:100])
    folders |= {"parts of a group": (parts, 0), "cut off": (cut, 1)}
    texts = {}
    for name, (folder, known) in folders.items():
        status, texts[name] = said(capsys, folder)
        assert status == known, name
    assert_golden("flight_recorder", texts)
    status, document = said(capsys, FIXTURES / "missing", "--json")
    (finding,) = json.loads(document)["findings"]
    assert (status, finding["ranks"], finding["number"]) == (1, [2], 5)


@pytest.mark.parametrize("release", ["2.8", "2.10", "2.13", "2.14", "2.15"])
def test_gloo_of_every_release_is_read_alike(capsys: Captured, release: str) -> None:
    """Those before 2.8 record nothing of gloo."""
    waits = "Rank 0 waits in all_reduce 4 in group 0 (default_pg); rank 1 has not begun it."
    status, text = said(capsys, FIXTURES / f"hang_{release}")
    assert (status, text.splitlines()[2]) == (1, waits)
    status, text = said(capsys, FIXTURES / f"healthy_{release}")
    assert (status, text.splitlines()[1]) == (0, flight_recorder.NOTHING)


def test_too_few_dumps_leave_it_open(tmp_path: Path) -> None:
    """Where the groups are not named, as those of gloo, nothing else says that a rank exists.

    torch writes none unless it was told to before the start.
    """
    with pytest.raises(UsageError, match=r"has no dump, .* if TORCH_FR_BUFFER_SIZE is set"):
        flight_recorder.run([str(tmp_path)])
    write(tmp_path, {0: DONE, 1: DONE})
    (tmp_path / "nccl_trace_rank_2").write_bytes(b"")

    assert flight_recorder.run([str(tmp_path)]) == 2


# ---- Reading -------------------------------------------------------------------------------------


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


RANKS = b'{"version": "2.10", "entries": [], "pg_config": {"0": {"ranks": "%s"}}}'


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}q",
        b"hello",
        b"[1]",
        b'{"version": "2.10", "entries": [{}]}',
        RANKS % b"__import__(1)",
        RANKS % b"[0, 1764300000]",
        pickle.dumps(7),
    ],
)
def test_what_is_no_dump_is_said_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    """A file that was cut off, or is something else, has a message with its name."""
    (tmp_path / "trace_rank_0").write_bytes(data)
    (tmp_path / "trace_rank_1").write_bytes(b"")
    read, unreadable = read_directory(tmp_path)

    assert (read, list(unreadable)) == ([], [0, 1])
    assert "trace_rank_0 is no dump of torch's flight recorder" in unreadable[0]
    assert "trace_rank_1 is empty: its process ended while it wrote" in unreadable[1]


class Harmful:
    """A pickle of this runs a command where it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._mark}",)


def test_dumps_of_a_stranger_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write where they are gets no shell of the reader, and does not block it.

    Only files are opened, of a size that does not take all memory, and no link is followed; no name
    moves the cursor.
    """
    mark = tmp_path / "was_run"
    (tmp_path / "rank_0").write_bytes(pickle.dumps({"entries": Harmful(mark)}))
    os.mkfifo(tmp_path / "rank_1")
    (tmp_path / "rank_2").symlink_to("/dev/zero")
    (tmp_path / "rank_3").write_bytes(b"x" * 1001)
    (tmp_path / "\x1b[2Jrank_4").touch()
    monkeypatch.setattr(dumps, "LARGEST_BYTES", 1000)
    read, unreadable = read_directory(tmp_path)

    assert not read
    assert "_0 is refused: it would run posix.system, and a dump" in unreadable[0]
    assert not mark.exists()
    assert "rank_1 is not a file" in unreadable[1]
    assert "cannot read" in unreadable[2]
    assert "is larger than" in unreadable[3]
    assert "/?[2Jrank_4 " in unreadable[4]
