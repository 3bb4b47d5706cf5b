"""Each event of a rank's life becomes one line at its beginning and one at its end."""

import json
from typing import Any

import pytest

from exporter.events.journal import LINES_A_MINUTE, MOST_RANKS, Journal
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

Line = tuple[str, str, float | None]


class Book:
    """A journal whose lines a test reads."""

    def __init__(self, written: list[str] | None = None, began: float = 0.0) -> None:
        self.lines: list[str] = []
        self.dropped = 0
        self.clock = Clock()
        self._journal = Journal(
            self.lines.append, self._drop, "node1", written or (), lambda: began, self.clock
        )

    def _drop(self) -> None:
        self.dropped += 1

    def see(self, *snapshots: Snapshot) -> list[dict[str, Any]]:
        """Return the lines that *snapshots* add."""
        before = len(self.lines)
        for each in snapshots:
            self._journal.see(each)
        return [json.loads(line) for line in self.lines[before:]]

    def short(self, *snapshots: Snapshot) -> list[Line]:
        """Return the same: event, state and duration."""
        lines = self.see(*snapshots)
        return [(line["event"], line["state"], line["duration_seconds"]) for line in lines]


def event(number: int, name: str, began: float, seconds: float | None = None) -> dict[str, Any]:
    return {
        "number": number,
        "event": name,
        "began_timestamp_seconds": began,
        "seconds": seconds,
    }


def telling(*events: dict[str, Any], **changes: Any) -> Snapshot:
    return snapshot(lifecycle_events=list(events), **changes)


INIT = event(1, "init", 1_000.0, 3.0)
BEGUN, DONE = event(2, "checkpoint", 1_010.0), event(2, "checkpoint", 1_010.0, 5.0)


def test_line_says_who_what_and_when() -> None:
    assert Book().see(telling(event(3, "checkpoint", 1_050.25, 4.5), rank=2)) == [
        {
            "time": "1970-01-01T00:17:34.750+00:00",
            "event": "checkpoint",
            "state": "done",
            "job_id": "llama",
            "rank": 2,
            "peer_group": "all",
            "host": "node1",
            "pid": 4711,
            "attempt": 0,
            "steps": 100,
            "duration_seconds": 4.5,
            "number": 3,
            "process_started": 1_000.0,
            "known_at_start": False,
        }
    ]


def test_each_change_is_one_line_however_often_it_is_told() -> None:
    """A snapshot tells its events again and again; a lost one loses none.

    Numbers tell which is meant, not the order in which they end.
    """
    book = Book()
    assert book.short(telling(INIT)) == [("init", "done", 3.0)]
    assert book.short(*[telling(INIT, BEGUN)] * 2) == [("checkpoint", "began", None)]
    assert book.short(*[telling(INIT, DONE)] * 2) == [("checkpoint", "done", 5.0)]

    both = (event(3, "checkpoint", 1_020.0), event(4, "evaluation", 1_021.0, 2.0))
    assert book.short(telling(*both)) == [
        ("checkpoint", "began", None),
        ("evaluation", "done", 2.0),
    ]
    ended = event(3, "checkpoint", 1_020.0, 9.0)
    assert book.short(telling(ended, both[1])) == [("checkpoint", "done", 9.0)]


def test_exporter_that_starts_again_repeats_nothing() -> None:
    """It reads what the exporter before it has written, and goes on from there."""
    first = Book()
    first.see(telling(INIT, BEGUN), telling(INIT, rank=1))
    again = Book([*first.lines, '{"cut o'])

    assert again.see(telling(INIT, BEGUN), telling(INIT, rank=1)) == []
    assert again.short(telling(INIT, DONE)) == [("checkpoint", "done", 5.0)]


def test_what_an_exporter_finds_is_marked() -> None:
    """Without the earlier file it cannot know whether somebody wrote that already."""
    lines = Book(began=1_005.0).see(telling(INIT, DONE))

    assert [line["known_at_start"] for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        # It took from the last report of the old process to the start of the new one.
        (telling(INIT), {"attempt": 1}, [("restart", "done", 40.0)]),
        # The node before knew the process before, this one only that there was one.
        (None, {"attempt": 2}, [("restart", "done", None)]),
        # A job id such as `local` is used again by the next run.
        (telling(finished=True), {}, []),
        (None, {}, []),
    ],
)
def test_process_that_replaces_a_dead_one_is_a_restart(
    before: Snapshot | None, after: dict[str, Any], lines: list[Line]
) -> None:
    book = Book()
    book.see(*[before] if before else [])

    assert book.short(telling(started_timestamp_seconds=1_100.5, **after)) == lines


def test_rank_with_too_many_events_is_cut_short_alone() -> None:
    """A process that makes up events does not fill the disk, and costs nobody else a line."""
    book = Book()
    for number in range(1, LINES_A_MINUTE + 11):
        book.see(telling(event(number, "checkpoint", 1_000.0, 1.0)))

    assert (len(book.lines), book.dropped) == (LINES_A_MINUTE, 10)
    assert len(book.see(telling(INIT, rank=1))) == 1
    book.clock.seconds += 60
    assert len(book.see(telling(event(999, "checkpoint", 1_000.0, 1.0)))) == 1


def test_time_beyond_the_calendar_is_no_time() -> None:
    """A clock that is wrong by millennia costs the line its time, not the exporter its life."""
    assert [line["time"] for line in Book().see(telling(event(1, "init", 1e15, 1.0)))] == [None]


@pytest.mark.parametrize("line", ["[]", "{}", "7", '{"rank": "x"}', "\x00"])
def test_foreign_line_in_the_file_is_passed_over(line: str) -> None:
    """Whatever else is in the file, the exporter starts."""
    assert len(Book([line]).see(telling(INIT))) == 1


def test_forgotten_ranks_take_no_memory() -> None:
    """A node sees any number of ranks in its life; those longest silent are forgotten."""
    book = Book()
    for rank in range(MOST_RANKS + 1):
        book.see(telling(INIT, rank=rank, world_size=MOST_RANKS + 1))

    assert len(book._journal._known) == MOST_RANKS


def test_process_with_another_number_is_no_restart() -> None:
    """It ran before, as another rank; whoever had the number may not have said that it left."""
    book = Book()
    book.see(telling(INIT, rank=4))
    renumbered = {"started_timestamp_seconds": 2_000.0, "group_formed_timestamp_seconds": 2_000.0}

    assert book.short(telling(rank=4, **renumbered)) == []
    assert book.short(telling(rank=5, attempt=1, **renumbered)) == []
    assert book.short(telling(rank=4, attempt=1)) == [("restart", "done", None)]
