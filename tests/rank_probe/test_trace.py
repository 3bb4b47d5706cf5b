"""Each step's stages are in the trace file at once, and a full disk is the trace's own problem."""

import errno
import os
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.process.identity import Identity
from rank_probe.report.trace import Trace, TraceFile, own_directory
from rank_probe.wire.stages import DATA, STAGES
from rankskew.replay.traces import read_traces
from tests.rank_probe.fakes import FakeTime

HEADER = (
    "job_id,rank,peer_group,step,time_s,node,optimizer_s,other_s,checkpoint_s,eval_s,data_s,"
    "h2d_s,forward_s,backward_s,compute_s,sync_s\n"
)
STEP = tuple(number / 8 for number in range(len(STAGES)))
ME = Identity("llama", "pp1", rank=3, world_size=8, local_rank="3", node_rank="7", attempt=0)
ANYBODY = replace(ME, peer_group="all", rank=0, node_rank="")


def test_rows_are_in_the_file_as_soon_as_they_are_written(tmp_path: Path) -> None:
    """A process that is killed loses nothing of what it has written, and may go on with it."""
    trace = TraceFile(str(tmp_path / "made"), "llama", 2)
    trace.write(ME, [(0, 0.5, STEP), (1, 1.25, STEP)])
    trace.write(ME, [(2, 2.0, STEP)])
    again = TraceFile(str(tmp_path / "made"), "llama", 2)
    again.write(ME, [(3, 2.5, STEP)])

    path = tmp_path / "made" / "llama-2-3.csv"
    stages = "0,0.125,0.25,0.375,0.5,0.625,0.75,0.875,1,1.125"
    steps = [(0, "0.500"), (1, "1.250"), (2, "2.000"), (3, "2.500")]
    rows = [f"llama,3,pp1,{step},{seconds},7,{stages}\n" for step, seconds in steps]
    assert path.read_text() == HEADER + "".join(rows)
    trace.close()
    again.close()


def test_names_of_any_kind_survive(tmp_path: Path) -> None:
    """A job's name cannot leave the directory or break a row, and replay reads it as it was."""
    job_id = '../ä, "x"/1'
    trace = TraceFile(str(tmp_path), job_id, 4)
    trace.write(replace(ANYBODY, peer_group="a\nb"), [(7, 0.0, STEP)])
    trace.close()

    assert [path.name for path in tmp_path.iterdir()] == [".._____x__1-4-0.csv"]
    (run,) = read_traces([tmp_path])
    assert (run.job_id, run.attempt, run.peer_groups) == (job_id, 4, {0: "a b"})
    assert run.steps == {7: {0: dict(zip(STAGES, STEP, strict=True))}}


@pytest.mark.parametrize("trap", ["pipe", "link", "file in place of the directory"])
def test_what_cannot_be_written_is_left_alone_and_logged_once(
    trap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a folder for all users: a pipe would hold training up, a link lead to a file of ours."""
    folder, precious = tmp_path / "made", tmp_path / "precious"
    precious.touch()
    if trap.startswith("file"):
        folder.touch()
    else:
        folder.mkdir()
        name = folder / "llama-0-0.csv"
        os.mkfifo(name) if trap == "pipe" else name.symlink_to(precious)
    trace = TraceFile(str(folder), "llama", 0)
    trace.write(ANYBODY, [(0, 0.0, STEP)])
    trace.write(ANYBODY, [(1, 0.0, STEP)])

    assert trace.stopped
    assert len(caplog.records) == 1
    assert precious.stat().st_size == 0


def test_full_disk_ends_the_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes a part and then no more ends the trace, not the training."""
    trace = TraceFile(str(tmp_path), "llama", 0)
    trace.write(ANYBODY, [(0, 0.0, STEP)])
    real_write, parts = os.write, iter([5])

    def nearly_full(file: int, data: bytes) -> int:
        for length in parts:
            return real_write(file, data[:length])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", nearly_full)
    trace.write(ANYBODY, [(1, 0.0, STEP)])
    assert trace.stopped
    trace.write(ANYBODY, [(2, 0.0, STEP)])
    monkeypatch.undo()

    (record,) = caplog.records
    assert "No space left" in record.getMessage()
    assert [run.steps.keys() for run in read_traces([tmp_path])] == [{0}]


def test_file_stops_at_its_cap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A long run fills no disk: at the cap the trace ends with whole rows and one log line."""
    trace = TraceFile(str(tmp_path), "llama", 0, max_mib=1000 / 2**20)
    for step in range(100):
        trace.write(ANYBODY, [(step, 0.0, STEP)])

    text = (tmp_path / "llama-0-0.csv").read_text()
    assert 900 < len(text) <= 1000
    assert text.endswith("\n")
    (record,) = caplog.records
    assert "RANK_PROBE_TRACE_MAX_MIB" in record.getMessage()


@pytest.mark.parametrize(("cap", "rows"), [("0", 0), ("1", 1), ("many", 1)])
def test_environment_sets_the_cap(
    cap: str, rows: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cap that is no number is said and not used."""
    environment = {"RANK_PROBE_TRACE": str(tmp_path), "RANK_PROBE_TRACE_MAX_MIB": cap}
    trace = TraceFile.from_environment(environment, "llama", 0)
    trace.write(ANYBODY, [(0, 0.0, STEP)])
    trace.close()

    assert len((tmp_path / "llama-0-0.csv").read_text().splitlines()[1:]) == rows
    assert ("'many'" in caplog.text) == (cap == "many")


class Loop:
    """A loop in fake time whose steps take a millisecond of data, and its trace."""

    def __init__(self, **environment: str) -> None:
        self.time = FakeTime()
        self.timeline = Timeline(automatic=False, now=self.time)
        self.trace = Trace(environment, self.timeline.steps)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.timeline.tape.note(events.ENTER | DATA)
            self.time.pass_(1_000_000)
            self.timeline.tape.note(events.LEAVE)
            self.timeline.tape.note(events.STEP)


def steps_in(directory: Path) -> list[str]:
    """Return the numbers of the steps in the only trace in *directory*."""
    (file,) = directory.iterdir()
    return [row.split(",")[3] for row in file.read_text().splitlines()[1:]]


def test_directory_in_the_environment_turns_it_on(tmp_path: Path) -> None:
    """With RANK_PROBE_TRACE every step is written from the first on; without it none is.

    A rank that never trains leaves no file.
    """
    idle = Loop(RANK_PROBE_TRACE=str(tmp_path))
    idle.trace.write(replace(ME, rank=4), on_demand=False)
    idle.trace.close()
    for loop in (Loop(RANK_PROBE_TRACE=str(tmp_path)), Loop()):
        loop.step(3)
        loop.trace.write(ME, on_demand=False)
        loop.trace.close()

    assert steps_in(tmp_path) == ["1", "2", "3"]
    assert list(tmp_path.iterdir()) == [tmp_path / "llama-0-3.csv"]


def test_operator_asks_for_a_trace_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the order on steps are written to a directory that is only this user's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loop = Loop()
    for steps, on_demand in [(1, True), (2, False), (1, False)]:
        loop.step(steps)
        loop.trace.write(ME, on_demand=on_demand)
    loop.trace.close()
    directory = tmp_path / f"rankskew-{os.getuid()}"

    assert steps_in(directory) == ["2", "3"]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("is_link", [True, False])
def test_directory_of_somebody_else_is_not_used(
    is_link: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another user could choose what is appended to: by a link, or by making it first."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if is_link:
        (tmp_path / "theirs").mkdir()
        (tmp_path / f"rankskew-{os.getuid()}").symlink_to(tmp_path / "theirs")
    else:
        somebody = os.getuid() + 1
        (tmp_path / f"rankskew-{somebody}").mkdir()
        monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(FileExistsError, match="RANK_PROBE_TRACE"):
        own_directory()

    loop = Loop()
    for _ in range(3):
        loop.trace.write(ME, on_demand=True)
        loop.step()
    assert caplog.text.count("belongs to another user") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
