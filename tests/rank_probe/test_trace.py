"""Each step's stages are in the trace file at once, and a full disk is the trace's own problem."""

import errno
import logging
import os
from pathlib import Path

import pytest

from exporter.replay import read_traces
from rank_probe.stages import STAGES
from rank_probe.trace import TraceFile

HEADER = (
    "job_id,rank,peer_group,step,time_s,optimizer_s,other_s,checkpoint_s,eval_s,data_s,h2d_s,"
    "forward_s,backward_s,compute_s,sync_s\n"
)
STEP = tuple(number / 8 for number in range(len(STAGES)))


def test_rows_are_in_the_file_as_soon_as_they_are_written(tmp_path: Path) -> None:
    """A process that is killed loses nothing of what it has written so far."""
    trace = TraceFile(str(tmp_path / "made"), "llama", 2)
    trace.write(3, "pp0", [(0, 0.5, STEP), (1, 1.25, STEP)])
    trace.write(3, "pp0", [(2, 2.0, STEP)])

    path = tmp_path / "made" / "llama-2-3.csv"
    stages = "0,0.125,0.25,0.375,0.5,0.625,0.75,0.875,1,1.125"
    assert path.read_text() == HEADER + (
        f"llama,3,pp0,0,0.500,{stages}\nllama,3,pp0,1,1.250,{stages}\nllama,3,pp0,2,2.000,{stages}\n"
    )
    trace.close()


def test_nothing_to_write_makes_no_file(tmp_path: Path) -> None:
    """A rank that never trains leaves no trace."""
    TraceFile(str(tmp_path), "llama", 0).write(0, "all", [])

    assert list(tmp_path.iterdir()) == []


def test_stage_that_was_not_measured_is_an_empty_cell(tmp_path: Path) -> None:
    """None is no reading, and never written as 0."""
    trace = TraceFile(str(tmp_path), "llama", 0)
    trace.write(0, "all", [(0, 0.0, (None,) * len(STAGES))])
    trace.close()

    assert (
        tmp_path / "llama-0-0.csv"
    ).read_text() == HEADER + "llama,0,all,0,0.000" + "," * 10 + "\n"


def test_names_of_any_kind_survive(tmp_path: Path) -> None:
    """A job's name cannot leave the directory or break a row, and replay reads it as it was."""
    job_id = '../ä, "x"/1'
    trace = TraceFile(str(tmp_path), job_id, 4)
    trace.write(0, "a\nb", [(7, 0.0, STEP)])
    trace.close()

    assert [path.name for path in tmp_path.iterdir()] == [".._____x__1-4-0.csv"]
    (run,) = read_traces([tmp_path])
    assert (run.job_id, run.attempt, run.peer_groups) == (job_id, 4, {0: "a b"})
    assert run.steps == {7: {0: dict(zip(STAGES, STEP, strict=True))}}


def test_process_that_goes_on_writes_no_second_header(tmp_path: Path) -> None:
    """Reopening the file of the same rank and attempt appends to it."""
    for step in (0, 1):
        trace = TraceFile(str(tmp_path), "llama", 0)
        trace.write(0, "all", [(step, 0.0, STEP)])
        trace.close()

    assert (tmp_path / "llama-0-0.csv").read_text().count("job_id") == 1
    assert [run.steps.keys() for run in read_traces([tmp_path])] == [{0, 1}]


def test_directory_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on without a trace, with one line in the log."""
    (tmp_path / "file").touch()
    trace = TraceFile(str(tmp_path / "file"), "llama", 0)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        trace.write(0, "all", [(0, 0.0, STEP)])
        trace.write(0, "all", [(1, 0.0, STEP)])

    assert trace.stopped
    assert len(caplog.records) == 1


def test_full_disk_ends_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes a part and then no more ends the trace, not the training."""
    trace = TraceFile(str(tmp_path), "llama", 0)
    trace.write(0, "all", [(0, 0.0, STEP)])
    real_write, parts = os.write, iter([5])

    def nearly_full(file: int, data: bytes) -> int:
        for length in parts:
            return real_write(file, data[:length])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", nearly_full)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        trace.write(0, "all", [(1, 0.0, STEP)])
        assert trace.stopped
        trace.write(0, "all", [(2, 0.0, STEP)])
    monkeypatch.undo()

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    assert [run.steps.keys() for run in read_traces([tmp_path])] == [{0}]


def test_file_stops_at_its_cap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A long run fills no disk: at the cap the trace ends with whole rows and one log line."""
    trace = TraceFile(str(tmp_path), "llama", 0, max_mib=1000 / 2**20)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        for step in range(100):
            trace.write(0, "all", [(step, 0.0, STEP)])

    text = (tmp_path / "llama-0-0.csv").read_text()
    assert 900 < len(text) <= 1000
    assert text.endswith("\n")
    assert ["RANK_PROBE_TRACE_MAX_MIB" in record.getMessage() for record in caplog.records] == [
        True
    ]


def test_environment_turns_it_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """RANK_PROBE_TRACE names the directory; a cap that is no number is said and not used."""
    on = {"RANK_PROBE_TRACE": str(tmp_path)}

    assert TraceFile.from_environment({}, "llama", 0) is None
    assert TraceFile.from_environment(on, "llama", 0) is not None
    assert caplog.records == []
    for cap, rows in (("0", 0), ("1", 1), ("many", 1)):
        trace = TraceFile.from_environment(on | {"RANK_PROBE_TRACE_MAX_MIB": cap}, cap, 0)
        assert trace is not None
        trace.write(0, "all", [(0, 0.0, STEP)])
        trace.close()
        assert len((tmp_path / f"{cap}-0-0.csv").read_text().splitlines()[1:]) == rows
    assert "'many'" in caplog.text
