"""Tests of the lines that snapshots become."""

import json
from typing import Any

import pytest

from exporter.events.journal import LINES_A_MINUTE, MOST_RANKS, Journal
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

BEGAN_UNIX = 1_000.0


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


def event(number: int, name: str, began: float, seconds: float | None = None) -> dict[str, Any]:
    return {
        "number": number,
        "event": name,
        "began_timestamp_seconds": began,
        "seconds": seconds,
    }


def telling(*events: dict[str, Any], **changes: Any) -> Snapshot:
    return snapshot(lifecycle_events=list(events), **changes)


def short(lines: list[dict[str, Any]]) -> list[tuple[str, str, float | None]]:
    return [(line["event"], line["state"], line["duration_seconds"]) for line in lines]


def test_line_says_who_what_and_when() -> None:
    """Each line can be read on its own."""
    lines = Book().see(telling(event(3, "checkpoint", 1_050.25, 4.5), rank=2, attempt=0))

    assert lines == [
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
    """A snapshot tells its events again and again."""
    book = Book()
    init, begun = event(1, "init", 1_000.0, 3.0), event(2, "checkpoint", 1_010.0)

    assert short(book.see(telling(init))) == [("init", "done", 3.0)]
    assert short(book.see(telling(init, begun), telling(init, begun))) == [
        ("checkpoint", "began", None)
    ]
    done = event(2, "checkpoint", 1_010.0, 5.0)
    assert short(book.see(telling(init, done), telling(init, done))) == [
        ("checkpoint", "done", 5.0)
    ]


def test_lost_snapshots_lose_no_event() -> None:
    """What began and ended between two snapshots is told by the later one."""
    book = Book()
    book.see(telling(event(1, "init", 1_000.0)))
    both = (event(2, "checkpoint", 1_010.0, 1.0), event(3, "evaluation", 1_020.0, 2.0))

    assert short(book.see(telling(*both))) == [
        ("checkpoint", "done", 1.0),
        ("evaluation", "done", 2.0),
    ]


def test_older_event_may_end_after_a_newer_one_began() -> None:
    """Numbers tell which is meant, not the order in which they end."""
    book = Book()
    book.see(telling(event(1, "init", 1_000.0), event(2, "evaluation", 1_001.0)))

    lines = book.see(telling(event(1, "init", 1_000.0, 9.0), event(2, "evaluation", 1_001.0)))
    assert short(lines) == [("init", "done", 9.0)]


def test_exporter_that_starts_again_repeats_nothing() -> None:
    """It reads what the exporter before it has written, and goes on from there."""
    first = Book()
    init, begun = event(1, "init", 1_000.0, 3.0), event(2, "checkpoint", 1_010.0)
    first.see(telling(init, begun), telling(init, rank=1))
    again = Book([*first.lines, '{"cut o'])

    assert again.see(telling(init, begun), telling(init, rank=1)) == []
    done = event(2, "checkpoint", 1_010.0, 5.0)
    assert short(again.see(telling(init, done))) == [("checkpoint", "done", 5.0)]


def test_what_an_exporter_finds_is_marked() -> None:
    """Without the earlier file it cannot know whether somebody wrote that already."""
    book = Book(began=BEGAN_UNIX)
    old, new = event(1, "init", 900.0, 50.0), event(2, "checkpoint", 1_010.0, 1.0)

    assert [line["known_at_start"] for line in book.see(telling(old, new))] == [True, False]


def test_process_that_replaces_a_dead_one_is_a_restart() -> None:
    """It took from the last report of the old process to the start of the new one."""
    book = Book()
    book.see(telling(event(1, "init", 1_000.0, 3.0)))
    init = event(1, "init", 1_100.0, 3.0)
    lines = book.see(telling(init, attempt=1, started_timestamp_seconds=1_100.5))

    assert short(lines) == [("restart", "done", 40.0), ("init", "done", 3.0)]


def test_later_attempt_on_a_new_node_is_a_restart() -> None:
    """The node before knew the process before, this one only that there was one."""
    assert short(Book().see(telling(attempt=2))) == [("restart", "done", None)]


def test_new_run_after_a_clean_end_is_no_restart() -> None:
    """A job id such as `local` is used again by the next run."""
    book = Book()
    book.see(telling(finished=True))

    assert book.see(telling(started_timestamp_seconds=2_000.0)) == []


def test_first_process_is_no_restart() -> None:
    """A job that starts has not been restarted."""
    assert Book().see(telling()) == []


def test_rank_with_too_many_events_is_cut_short_alone() -> None:
    """A process that makes up events does not fill the disk, and costs nobody else a line."""
    book = Book()
    for number in range(1, LINES_A_MINUTE + 11):
        book.see(telling(event(number, "checkpoint", 1_000.0, 1.0)))

    assert (len(book.lines), book.dropped) == (LINES_A_MINUTE, 10)
    assert len(book.see(telling(event(1, "init", 1_000.0, 1.0), rank=1))) == 1
    book.clock.seconds += 60
    assert len(book.see(telling(event(999, "checkpoint", 1_000.0, 1.0)))) == 1


def test_time_beyond_the_calendar_is_no_time() -> None:
    """A clock that is wrong by millennia costs the line its time, not the exporter its life."""
    assert [line["time"] for line in Book().see(telling(event(1, "init", 1e15, 1.0)))] == [None]


@pytest.mark.parametrize("line", ["[]", "{}", "7", '{"rank": "x"}', "\x00"])
def test_foreign_line_in_the_file_is_passed_over(line: str) -> None:
    """Whatever else is in the file, the exporter starts."""
    assert len(Book([line]).see(telling(event(1, "init", 1_000.0, 1.0)))) == 1


def test_forgotten_ranks_take_no_memory() -> None:
    """A node sees any number of ranks in its life; those longest silent are forgotten."""
    book = Book()
    for rank in range(MOST_RANKS + 1):
        book.see(telling(event(1, "init", 1_000.0, 1.0), rank=rank, world_size=MOST_RANKS + 1))

    assert len(book._journal._told) == MOST_RANKS
