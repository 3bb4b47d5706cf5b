"""The steps of a trace are placed on one clock, whatever its time_s counts."""

from pathlib import Path

import pytest

from exporter.replay.times import Timeline, has_sync, timeline
from exporter.replay.traces import Run, read_traces

HEADER = "job_id,rank,peer_group,step,time_s,data_s,sync_s"


def run(path: Path, *times: int, sync: str = "1.5") -> Run:
    """Return a run of two ranks with steps of 2 s at *times*."""
    rows = [
        f"j,{rank},a,{step},{time},0.5,{sync}"
        for step, time in enumerate(times)
        for rank in range(2)
    ]
    (path / "a.csv").write_text("\n".join([HEADER, *rows, ""]))
    (found,) = read_traces([path])
    return found


def ends(line: Timeline) -> list[list[float]]:
    """Return when the steps of each rank ended."""
    return [list(of_rank.values()) for of_rank in line.ends.values()]


@pytest.mark.parametrize("times", [(2, 12), (0, 10), (99, 109)])
def test_time_is_the_end_of_a_step_or_its_begin(tmp_path: Path, times: tuple[int, int]) -> None:
    """A first step that cannot have ended by its time_s began then; the run begins with it."""
    line = timeline(run(tmp_path, *times), 1.0)

    assert ends(line) == [[2, 12], [2, 12]]
    assert line.begins == {0: 0.0, 1: 0.0}
    assert line.origin_seconds == max(times[0] - 2, 0)


def test_time_scale_stretches_the_clock(tmp_path: Path) -> None:
    """Ten times slower is ten times later; the origin is unscaled."""
    line = timeline(run(tmp_path, 99, 109), 10.0)

    assert ends(line)[0] == [20, 120]
    assert (line.seconds, line.origin_seconds) == (120, 97)


def test_clock_that_stands_still_is_none(tmp_path: Path) -> None:
    """Where all rows have one time_s, the steps follow each other."""
    assert ends(timeline(run(tmp_path, 0, 0, 0), 1.0))[0] == [2, 4, 6]


def test_zeros_everywhere_are_no_measured_wait(tmp_path: Path) -> None:
    """A single wait above 0 shows that waits were measured."""
    for sync, measured in (("0", False), ("", False), ("1.5", True)):
        assert has_sync(run(tmp_path, 2, 4, sync=sync)) is measured
