"""Tests of the disorder in which snapshots are replayed."""

from benchmarks.faults.replays import disorder


def test_snapshots_come_twice_and_out_of_order() -> None:
    """All of both processes, the same for the same seed."""
    sent = disorder(50, 1)
    numbers = [(each.started_timestamp_seconds, each.sequence) for each in sent]

    assert len(sent) == 200
    assert len(set(numbers)) == 100
    assert numbers != sorted(numbers)
    assert numbers == [(e.started_timestamp_seconds, e.sequence) for e in disorder(50, 1)]
