"""A process that gets another rank number tells the counters of each number apart."""

from dataclasses import fields

from rank_probe.process.own_rank import OwnRank
from rank_probe.report.renumbered import COUNTERS, Renumbered, since
from rank_probe.wire.snapshot import Snapshot
from tests.exporter.snapshots import snapshot


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


def test_each_later_number_begins_at_zero_as_well() -> None:
    """The last words of a number belong to the process as it was then."""
    own_rank, telling = renumbered()
    own_rank.since = own_rank.formed = 2_000.0
    telling.told(snapshot(rank=5, steps=100), is_last=True)
    telling.told(snapshot(rank=4, steps=150), is_last=False)
    own_rank.since = own_rank.formed = 3_000.0
    last = telling.told(snapshot(rank=4, steps=160), is_last=True)
    told = telling.told(snapshot(rank=3, steps=170), is_last=False)

    assert (last.steps, last.started_timestamp_seconds) == (60, 2_000.0)
    assert last.group_formed_timestamp_seconds == 2_000.0
    assert (told.steps, told.started_timestamp_seconds) == (10, 3_000.0)


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
    base = snapshot(stage_seconds={"data": 1.0, "eval": 2.0}, paced_steps={"data": 3}, samples=None)
    later = snapshot(stage_seconds={"data": 1.5, "eval": 2.0}, paced_steps={"data": 3}, samples=7)
    told = since(later, base)

    assert told.stage_seconds == {"data": 0.5}
    assert told.paced_steps == {"data": 0}
    assert told.samples == 7


def test_counter_that_began_anew_is_zero_not_negative() -> None:
    """Device times begin at 0 when a device's clock takes over."""
    told = since(snapshot(stage_seconds={"data": 0.5}), snapshot(stage_seconds={"data": 2.0}))

    assert told.stage_seconds == {}


def test_every_counter_is_a_field() -> None:
    """A field that is renamed must be renamed there."""
    assert set(COUNTERS) <= {each.name for each in fields(Snapshot)}
