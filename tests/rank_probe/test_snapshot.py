"""Tests of what a push says: its bytes, counters by rank number, blocks, text, and a warning."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from exporter.ingest.schema import parse
from rank_probe.measure import events
from rank_probe.process.own_rank import OwnRank
from rank_probe.report.blocks import LEAST_STEPS, Blocks
from rank_probe.report.report import (
    COMPILING_SECONDS,
    PATIENCE_SECONDS,
    MissingSteps,
    Renumbered,
    since,
)
from rank_probe.wire.snapshot import SnapshotEncoder
from rank_probe.wire.text import printable
from tests.exporter.snapshots import snapshot, verdict
from tests.rank_probe.measure.noted_loop import BACKWARDS, OPTIMIZE, Job

LATE: Mapping[str, Any] = {
    "thread_states": [{"stage": "data", "state": "sleep", "share": 0.5, "place": ""}],
    "peer_figures": {"gc_ratio": [0.1, 0.2, 0.3]},
    "loader": "Corpus.__getitem__ (corpus.py:30)",
}
CHANGES: tuple[Mapping[str, Any], ...] = (
    {"sequence": 2, "steps": 110, "stage": "data"},
    {"stage_seconds": {"data": 13.0}, "verdict": verdict()},
    {"peer_group": "pp1"},
    {"rank_info": {"level": "detail"}, "push_failures": 1},
    {"runtime_info": {"torch": "2.13.0"}},
    LATE,
    {"finished": True},
    {},
)


def test_each_push_says_the_whole_state_as_it_is_now() -> None:
    """What was encoded for an earlier push is sent again only while it is still so."""
    encoder = SnapshotEncoder()
    for changes in CHANGES:
        taken, unknown_fields = parse(encoder.encode(snapshot(**changes)))

        assert (taken, unknown_fields) == (snapshot(**changes), 0)


@pytest.mark.parametrize("name", LATE)
def test_what_only_a_late_rank_says_is_left_out(name: str) -> None:
    """A healthy rank's push is not longer for it."""
    assert name in json.loads(snapshot(**LATE).to_json())
    assert name not in json.loads(snapshot(**{**LATE, name: type(LATE[name])()}).to_json())


def renumbered() -> tuple[OwnRank, Renumbered]:
    own_rank = OwnRank({}, {}, lambda: True)
    return own_rank, Renumbered(own_rank)


def test_new_number_begins_at_zero_and_only_grows() -> None:
    """Else the series of that rank would fall, which counts as a restart from 0 with all of it."""
    own_rank, telling = renumbered()
    first = telling.told(snapshot(rank=5, steps=100), is_last=False)
    own_rank.since = own_rank.formed = 2_000.0
    last = telling.told(snapshot(rank=5, steps=103), is_last=True)
    told = [telling.told(snapshot(rank=4, steps=steps), is_last=False) for steps in (103, 104, 200)]

    assert (first.steps, first.finished, first.started_timestamp_seconds) == (100, False, 1_000.0)
    assert (last.rank, last.steps, last.finished) == (5, 103, True)
    assert last.started_timestamp_seconds == 1_000.0
    assert last.group_formed_timestamp_seconds is None
    assert [(each.rank, each.steps, each.finished) for each in told] == [
        (4, 0, False),
        (4, 1, False),
        (4, 97, False),
    ]
    assert {each.started_timestamp_seconds for each in told} == {2_000.0}
    assert {each.group_formed_timestamp_seconds for each in told} == {2_000.0}


def test_process_that_keeps_its_number_goes_on() -> None:
    """Only the age of its group is new."""
    own_rank, telling = renumbered()
    own_rank.formed = 2_000.0
    told = telling.told(snapshot(steps=100), is_last=False)

    assert (told.steps, told.started_timestamp_seconds) == (100, 1_000.0)
    assert told.group_formed_timestamp_seconds == 2_000.0


def test_events_of_the_number_before_are_not_told_again() -> None:
    """The exporter writes each of them down once."""
    own_rank, telling = renumbered()
    events = [
        {"number": number, "event": "checkpoint", "began_timestamp_seconds": at, "seconds": 1.0}
        for number, at in ((1, 1_990.0), (2, 2_010.0))
    ]
    own_rank.since = 2_000.0
    telling.told(snapshot(rank=5), is_last=True)
    told = telling.told(snapshot(rank=4, lifecycle_events=events), is_last=False)

    assert [event["number"] for event in told.lifecycle_events] == [2]


def test_stages_that_have_not_occurred_since_are_not_told() -> None:
    """But what the join counts is, from 0 on."""
    caused = {"data": 3.0}
    base = snapshot(stage_seconds={"data": 1.0, "eval": 2.0}, wait_caused_seconds=caused)
    later = snapshot(
        stage_seconds={"data": 1.5, "eval": 2.0}, wait_caused_seconds=caused, samples=7
    )
    told = since(later, base)

    assert told.stage_seconds == {"data": 0.5}
    assert told.wait_caused_seconds == {"data": 0.0}
    assert told.samples == 7


def test_counter_that_began_anew_is_zero_not_negative() -> None:
    """Device times begin at 0 when a device's clock takes over."""
    told = since(snapshot(stage_seconds={"data": 0.5}), snapshot(stage_seconds={"data": 2.0}))

    assert told.stage_seconds == {}


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_a_block_has_the_same_steps_however_many_are_read_at_once(at_once: int) -> None:
    """Of the steps 17 to 32, not those before and after, which read for longer."""
    job = Job()
    blocks = Blocks(job.steps)
    blocks.snapshot_fields()
    for step in range(1, 2 * LEAST_STEPS + 4):
        is_inside = LEAST_STEPS < step <= 2 * LEAST_STEPS
        data = 2_000.0 if is_inside else 2_010.0
        job.run(events.FETCH, data, events.FETCHED, *BACKWARDS, *OPTIMIZE)
        if step % at_once == 0:
            blocks.snapshot_fields()

    said = blocks.snapshot_fields()
    assert said["block_steps"] == LEAST_STEPS
    assert said["block_seconds"]["data"] == pytest.approx(2.0)


FETCH, BACKWARD, OPTIMIZER = events.FETCHED, events.BACKWARD_ENDED, events.OPTIMIZER_ENDED


def watch(missing: MissingSteps, clock: list[float], *seen: int, steps: int = 0) -> None:
    """Look once a second, for long, at a loop that shows these signs and has done *steps*."""
    until = clock[0] + 10 * PATIENCE_SECONDS
    while clock[0] < until:
        missing.look(steps, lambda: seen)
        clock[0] += 1


@pytest.mark.parametrize(
    ("automatic", "seen", "cause"),
    [
        (True, [FETCH], "backward does not run"),
        (True, [FETCH, BACKWARD], "no optimizer of torch.optim"),
        (True, [BACKWARD], "no optimizer of torch.optim"),
        (True, [OPTIMIZER], "no batch of a DataLoader"),
        (False, [FETCH, BACKWARD, OPTIMIZER], "probe.step() was not called"),
    ],
)
def test_loop_without_steps_is_told_once(
    automatic: bool, seen: list[int], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says what is missing and shows the lines that mend it.

    None before training begins: loading a model may take an hour.
    """
    clock = [0.0]
    missing = MissingSteps(automatic=automatic, now=lambda: clock[0])
    watch(missing, clock, events.ENTER, events.WAIT)
    began = clock[0]
    missing.look(0, lambda: seen)
    clock[0] = began + (COMPILING_SECONDS if seen == [FETCH] else PATIENCE_SECONDS)
    missing.look(0, lambda: seen)
    assert caplog.text == ""
    clock[0] += 1
    missing.look(0, lambda: seen)
    (record,) = caplog.records
    assert cause in record.message
    assert "probe.step()" in record.message
    watch(missing, clock, *seen)
    assert caplog.records == [record]


def test_loop_with_steps_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also if it stops stepping later."""
    clock = [0.0]
    missing = MissingSteps(automatic=True, now=lambda: clock[0])
    missing.look(1, lambda: [FETCH])
    watch(missing, clock, FETCH, BACKWARD, OPTIMIZER)

    assert caplog.text == ""


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("nginx/1.25 (Köln)", None, "nginx/1.25 (Köln)"),
        ("\x1b[2J\nred\u202e", None, "?[2J?red?"),
        ("abc\n", 3, "abc"),
        ("\n" * 3, 2, "??"),
    ],
)
def test_nothing_moves_a_cursor_and_nothing_is_long(
    text: str, most: int | None, shown: str
) -> None:
    """Letters of any language stay."""
    assert printable(text, most) == shown
