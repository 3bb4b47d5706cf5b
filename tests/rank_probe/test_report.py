"""What a push says, and a trace: counters by rank number, blocks, text, warnings, rows in files."""

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.ingest.schema import parse
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.process.identity import Identity
from rank_probe.process.own_rank import OwnRank
from rank_probe.report.blocks import LEAST_STEPS, Blocks
from rank_probe.report.report import COMPILING_SECONDS, PATIENCE_SECONDS, MissingSteps, Renumbered
from rank_probe.report.trace import Trace, TraceFile
from rank_probe.wire.snapshot import AsJson, SnapshotEncoder
from rank_probe.wire.stages import DATA, STAGES
from rankskew.replay.traces import read_traces
from tests.exporter.snapshots import snapshot, verdict
from tests.rank_probe.fakes import FakeTime
from tests.rank_probe.measure.noted_loop import BACKWARDS, OPTIMIZE, Job

LATE: Mapping[str, Any] = {
    "thread_states": [{"stage": "data", "state": "sleep", "share": 0.5, "place": ""}],
    "peer_figures": {"gc_ratio": [0.1, 0.2, 0.3]},
    "loader": "Corpus.__getitem__ (corpus.py:30)",
}
CHANGES: tuple[Mapping[str, Any], ...] = (
    {"sequence": 2, "steps": 110, "stage": "data"},
    {"stage_seconds": {"data": 13.0}, "verdict": verdict()},
    {"verdict": AsJson(json.dumps(verdict(step=1_300)).encode())},
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


def test_new_number_begins_at_zero_and_only_grows() -> None:
    """Otherwise the rank's series would fall, a counter reset that adds its whole value again.

    A process that keeps its number goes on: only the age of its group is new. Events of the
    previous number are not repeated, because the exporter records each event once. Only stages that
    occurred since are reported; device times begin at 0 when a device's clock takes over.
    """
    own_rank = OwnRank({}, {}, lambda: True)
    telling = Renumbered(own_rank)
    events = [
        {"number": number, "event": "checkpoint", "began_timestamp_seconds": at, "seconds": 1.0}
        for number, at in ((1, 1_990.0), (2, 2_010.0))
    ]
    first = telling.told(snapshot(rank=5, steps=100), is_last=False)
    own_rank.formed = 1_500.0
    kept = telling.told(snapshot(rank=5, steps=101), is_last=False)
    own_rank.since = own_rank.formed = 2_000.0
    spent: dict[str, Any] = {"wait_caused_seconds": {"data": 3.0}}
    spent["stage_seconds"] = {"data": 1.0, "eval": 2.0, "h2d": 2.0}
    last = telling.told(snapshot(rank=5, steps=103, **spent), is_last=True)
    spent["stage_seconds"] = {"data": 1.5, "eval": 2.0, "h2d": 0.5}
    told = [
        telling.told(snapshot(rank=4, steps=steps, lifecycle_events=events, **spent), is_last=False)
        for steps in (103, 104, 200)
    ]

    assert [(each.rank, each.steps, each.finished) for each in (first, kept, last, *told)] == [
        *((5, 100, False), (5, 101, False), (5, 103, True)),
        *((4, 0, False), (4, 1, False), (4, 97, False)),
    ]
    started = [each.started_timestamp_seconds for each in (first, kept, last, *told)]
    assert started == [1_000.0] * 3 + [2_000.0] * 3
    formed = [each.group_formed_timestamp_seconds for each in (first, kept, last, *told)]
    assert formed == [None, 1_500.0, 1_500.0, 2_000.0, 2_000.0, 2_000.0]
    assert [event["number"] for event in told[0].lifecycle_events] == [2]
    assert (told[0].stage_seconds, told[0].wait_caused_seconds) == ({"data": 0.5}, {"data": 0.0})


@pytest.mark.parametrize(("data", "size"), [(2_000.0, LEAST_STEPS), (250.0, 8 * LEAST_STEPS)])
@pytest.mark.parametrize(("at_once", "before", "after"), [(7, 0, 1), (100, 0, 3), (7, 5, 3)])
def test_a_block_has_the_same_steps_however_many_are_read_at_once(
    at_once: int, before: int, after: int, data: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the steps 17 to 32, not those before and after, which read for longer.

    They are counted from the first one of the group: a rank may have stepped *before*. Where steps
    are short it takes more of them to make half a minute.
    """
    monkeypatch.setattr("rank_probe.measure.steps.MOST", 100)  # Less than a block of short steps.
    job = Job()
    blocks = Blocks(job.steps, before)
    blocks.snapshot_fields()
    for step in range(1 - before, 2 * size + 1 + after):
        longer = 0.0 if size < step <= 2 * size else 10.0
        job.run(events.FETCH, data + longer, events.FETCHED, *BACKWARDS, *OPTIMIZE)
        if step % at_once == 0:
            job.steps.fold()
            blocks.snapshot_fields()
    job.steps.fold()
    said = blocks.snapshot_fields()
    assert said["block_steps"] == size
    assert said["block_seconds"]["data"] == pytest.approx(data / 1_000)


FETCH, BACKWARD, OPTIMIZER = events.FETCHED, events.BACKWARD_ENDED, events.OPTIMIZER_ENDED


@pytest.mark.parametrize(
    ("automatic", "seen", "cause"),
    [
        (True, [FETCH], "backward does not run"),
        (True, [BACKWARD], "no optimizer of torch.optim"),
        (True, [OPTIMIZER], "no batch of a DataLoader"),
        (False, [FETCH, BACKWARD, OPTIMIZER], "probe.step() was not called"),
    ],
)
def test_loop_without_steps_is_told_once(
    automatic: bool, seen: list[int], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says what is missing and shows the lines that mend it.

    None after a step, and none before training begins: loading a model may take an hour.
    """
    now = 0.0
    missing, fine = (MissingSteps(automatic=automatic, now=lambda: now) for _ in range(2))
    fine.look(1, lambda: seen)
    missing.look(0, lambda: [events.ENTER, events.WAIT])
    now = 10 * COMPILING_SECONDS
    missing.look(0, lambda: seen)
    now += COMPILING_SECONDS if seen == [FETCH] else PATIENCE_SECONDS
    missing.look(0, lambda: seen)
    assert caplog.text == ""
    now += 1
    missing.look(0, lambda: seen)
    (record,) = caplog.records
    assert cause in record.message
    assert "probe.step()" in record.message
    now += 10 * COMPILING_SECONDS
    for each in (missing, fine):
        each.look(0, lambda: seen)
    assert caplog.records == [record]


HEADER = (
    "job_id,rank,peer_group,step,time_s,node,optimizer_s,other_s,checkpoint_s,eval_s,data_s,"
    "h2d_s,forward_s,backward_s,compute_s,sync_s\n"
)
STEP = tuple(number / 8 for number in range(len(STAGES)))
ME = Identity("llama", "pp1", rank=3, world_size=8, local_rank="3", node_rank="7", attempt=0)
ANYBODY = replace(ME, peer_group="all", rank=0, node_rank="")


def test_rows_are_in_the_file_as_soon_as_they_are_written(tmp_path: Path) -> None:
    """A process that is killed loses nothing of what it has written, and may go on with it.

    A job's name cannot leave the directory or break a row, and replay reads it as it was.
    """
    job_id, me = '../ä, "x"/1', replace(ME, peer_group="a\nb")
    trace, again = (TraceFile(str(tmp_path / "made"), job_id, 2) for _ in range(2))
    trace.write(me, [(0, 0.5, STEP), (1, 1.25, STEP)])
    trace.write(me, [(2, 2.0, STEP)])
    again.write(me, [(3, 2.5, STEP)])

    path = tmp_path / "made" / ".._____x__1-2-3.csv"
    stages = "0,0.125,0.25,0.375,0.5,0.625,0.75,0.875,1,1.125"
    steps = [(0, "0.500"), (1, "1.250"), (2, "2.000"), (3, "2.500")]
    rows = [f'"../ä, ""x""/1",3,a b,{step},{seconds},7,{stages}\n' for step, seconds in steps]
    assert path.read_text() == HEADER + "".join(rows)
    (run,) = read_traces([tmp_path / "made"])
    assert (run.job_id, run.attempt, run.peer_groups) == (job_id, 2, {3: "a b"})
    assert run.steps[2] == {3: dict(zip(STAGES, STEP, strict=True))}
    trace.close()
    again.close()


@pytest.mark.parametrize("trap", ["pipe", "link"])
def test_what_cannot_be_written_is_left_alone_and_logged_once(
    trap: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a folder for all users: a pipe would hold training up, a link lead to a file of ours."""
    name, precious = tmp_path / "llama-0-0.csv", tmp_path / "precious"
    precious.touch()
    os.mkfifo(name) if trap == "pipe" else name.symlink_to(precious)
    trace = TraceFile(str(tmp_path), "llama", 0)
    trace.write(ANYBODY, [(0, 0.0, STEP)])
    trace.write(ANYBODY, [(1, 0.0, STEP)])

    assert trace.stopped
    assert len(caplog.records) == 1
    assert precious.stat().st_size == 0


def test_file_stops_at_its_cap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A long run fills no disk: at the cap the trace ends with whole rows and one log line.

    A cap that is no number is said and not used.
    """
    environment = {"RANK_PROBE_TRACE": str(tmp_path)}
    for attempt, cap in enumerate(("1", "many")):
        capped = environment | {"RANK_PROBE_TRACE_MAX_MIB": cap}
        trace = TraceFile.from_environment(capped, "llama", attempt)
        for step in range(20):
            trace.write(ANYBODY, [(step, 0.0, STEP)] * 1_000)
        trace.close()
    text, whole = ((tmp_path / f"llama-{attempt}-0.csv").read_text() for attempt in (0, 1))

    reached, unknown = (record.getMessage() for record in caplog.records)
    assert "it has reached RANK_PROBE_TRACE_MAX_MIB" in reached
    assert "RANK_PROBE_TRACE_MAX_MIB is 'many'" in unknown
    assert whole.count("\n") == 20_001
    assert whole.startswith(text)
    assert text.endswith("\n")
    assert text.count("\n") > 9_000
    assert len(text) <= 2**20


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
    for loop, rank, steps in (
        (Loop(RANK_PROBE_TRACE=str(tmp_path)), 4, 0),
        (Loop(RANK_PROBE_TRACE=str(tmp_path)), 3, 2),
        (Loop(), 5, 2),
    ):
        loop.step(steps)
        loop.trace.write(replace(ME, rank=rank), on_demand=False)
        loop.trace.close()

    assert [path.name for path in tmp_path.iterdir()] == ["llama-0-3.csv"]
    assert steps_in(tmp_path) == ["1", "2"]


def test_operator_may_ask_for_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    is_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user could choose what is appended to: by a link, or by making it first."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    if is_link:
        (tmp_path / f"rankskew-{os.getuid()}").symlink_to(tmp_path / "theirs")
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
        (tmp_path / "rankskew-4000000").mkdir()
    loop = Loop()
    for _ in range(3):
        loop.trace.write(ME, on_demand=True)
        loop.step()

    (record,) = caplog.records
    assert "belongs to another user; set RANK_PROBE_TRACE" in record.getMessage()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
