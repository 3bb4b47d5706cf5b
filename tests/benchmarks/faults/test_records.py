"""Tests of what ranks write of themselves."""

import os
import time
from pathlib import Path

from benchmarks.faults.pauses import Paused
from benchmarks.faults.records import RECORD, Recorder, read


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Steps of a process, with their times by the reader's clock."""
    recorder = Recorder(tmp_path, 3)
    recorder.write(0.02, Paused(0.001, 0.002, 0.004), 0.003)
    recorder.write(0.03, Paused(0.0, 0.0, 0.0), 0.0)
    (life,) = read(tmp_path)

    assert (life.rank, life.pid) == (3, os.getpid())
    assert [step.seconds for step in life.steps] == [0.02, 0.03]
    step = life.steps[0]
    assert (step.paused_seconds, step.held_up_seconds, step.empty_seconds) == (0.001, 0.002, 0.003)
    assert abs(step.ended - time.time()) < 5
    assert (life.counted(0.0), life.counted(time.time() + 1)) == (0, 2)


def test_half_a_record_is_no_step(tmp_path: Path) -> None:
    """A kill may come while one is written; lives are in their order."""
    record = RECORD.pack(2.0, 0.02, 0.0, 0.0, 0.0)
    (tmp_path / "0-20.steps").write_bytes(record + record[:5])
    (tmp_path / "0-30.steps").write_bytes(RECORD.pack(1.0, 0.02, 0.0, 0.0, 0.0))
    (tmp_path / "0-40.steps").write_bytes(b"")

    assert [(life.pid, len(life.steps)) for life in read(tmp_path)] == [(30, 1), (20, 1)]
