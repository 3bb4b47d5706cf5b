"""A trace is read completely, or refused in one line, and cut into stretches of the same ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from exporter.errors import UsageError
from rank_probe.process.identity import for_rank
from rank_probe.report.trace import TraceFile
from rank_probe.wire.stages import STAGES
from rankskew.replay.traces import Run, TraceStretch, has_sync, read_traces, stretches, timeline
from tests.printed import assert_golden

HEADER: Final = "job_id,rank,peer_group,step,time_s,node,data_s,sync_s"
ROWS = [f"j,{rank},pp0,{step},{step}.5,{rank},0.5,0.25" for step in range(4) for rank in range(2)]

BARE = ["j,1,all,1,2,1", "j,0,all,0,1,1", "j,1,all,0,1,1", "j,0,all,1,2,1"]


def write(path: Path, *rows: str, header: str = HEADER, end: str = "\n") -> Path:
    path.write_text("\n".join([header, *ROWS, *rows]) + end)
    return path


def test_row_is_a_step_of_a_rank(tmp_path: Path) -> None:
    """Stages, time, peer group and node of each rank are kept as they stand there.

    A row without measurements is no step: it would only make the mean step shorter. Order, empty
    lines and nodes are optional.
    """
    path = write(tmp_path / "a.csv", "j,7,,4,4.75,,,0.125", "j,0,pp0,5,5.5,0,,")
    (run,) = read_traces([path])

    assert sorted(run.steps) == [0, 1, 2, 3, 4]
    assert run.steps[3] == {rank: {"data": 0.5, "sync": 0.25} for rank in range(2)}
    assert run.steps[4] == {7: {"sync": 0.125}}
    assert run.times[1] == {0: 0.5, 1: 1.5, 2: 2.5, 3: 3.5}
    assert run.peer_groups == {0: "pp0", 1: "pp0", 7: "all"}
    assert run.nodes == {0: "0", 1: "1", 7: ""}
    named = write(tmp_path / "named.csv", "j\x1b[2J,7,\x1b,4,4.75,\x1b,0.5,0.125")
    other = read_traces([named])[1]  # No name moves the cursor of who reads it.
    assert (other.job_id, other.peer_groups, other.nodes) == ("j?[2J", {7: "?"}, {7: "?"})
    assert read_traces([path, path]) == [run]  # A repeated row is harmless.
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # A spreadsheet has saved it.
    assert read_traces([path]) == [run]
    path.write_text("\n\n".join(["job_id,rank,peer_group,step,time_s,data_s", *BARE, ""]))
    (bare,) = read_traces([path])
    assert bare.nodes == {0: "", 1: ""}
    assert {step: len(ranks) for step, ranks in bare.steps.items()} == {0: 2, 1: 2}


def test_row_cut_off_by_a_kill_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a killed process's file costs one row, and no silence."""
    path = write(tmp_path / "a.csv", "j,0,pp0,4,4.5,0,0.", end="")
    (run,) = read_traces([path])

    assert sorted(run.steps) == [0, 1, 2, 3]
    assert capsys.readouterr().err == (
        f"rankskew: {path}: its last row has no newline and is left out\n"
    )


def test_attempt_is_in_the_name_that_the_probe_gives(tmp_path: Path) -> None:
    """What the probe writes is read as its attempt, whatever the job is called.

    A restart counts its steps from 0 again; a rank may be killed before its first row. A date in
    another name is not an attempt, even if it ends in the number of a rank.
    """
    restarted = tmp_path / "restarted"
    restarted.mkdir()
    for name in ("j-0-0.csv", "j-1-0.csv"):
        (restarted / name).write_text("\n".join([HEADER, "j,0,all,0,1,0,0.5,0", ""]))
    (restarted / "j-2-0.csv").touch()
    assert [(run.attempt, len(run.steps)) for run in read_traces([restarted])] == [(0, 1), (1, 1)]
    for job_id in ("j", "team/job 5-3", "j-1"):
        for rank in range(2):
            file = TraceFile(str(tmp_path), job_id, attempt=7)
            file.write(for_rank({}, rank, 2), [(0, 1.0, [0.5] * len(STAGES))])
            file.close()

    assert [(run.job_id, run.attempt, len(run.times)) for run in read_traces([tmp_path])] == [
        ("j", 7, 2),
        ("j-1", 7, 2),
        ("team/job 5-3", 7, 2),
    ]
    for name in ("incident-2024-05-01.csv", "j-5-1.csv.csv", "j-1.csv", "x-5-1.csv"):
        (run,) = read_traces([write(tmp_path / name)])
        assert (run.attempt, sorted(run.times)) == (0, [0, 1])


BAD_ROWS: Final = """\
j,0,pp0,4,4.5,0,0.1
j,x,pp0,4,4.5,0,0.1,0.2
j,0,pp0,-1,4.5,0,0.1,0.2
j,0,pp0,4,soon,0,0.1,0.2
j,0,pp0,4,,0,0.1,0.2
j,0,pp0,4,4.5,0,nan,0.2
j,0,pp0,4,1732233600000,0,0.1,0.2
j,0,pp0,4,4.5,0,1e12,0.2
j,0,pp0,0,0.5,0,9.9,0.2
j,0,pp0,4,3.25,0,0.1,0.2
j,0,"pp0"x,4,4.5,0,0.1,0.2
"""
BAD_FILES: Final = {
    "no job": "rank,peer_group,step,time_s,data_s\n",
    "a column that is no stage": HEADER + ",lunch_s\n",
    "a column twice": HEADER + ",data_s\n",
    "no stage": "job_id,rank,peer_group,step,time_s,node\n",
    "empty": "",
    "no row": f"{HEADER}\n",
    "bytes": "\udcff\udcfe\n",
}


def test_what_is_no_trace_is_named_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading ends with the place, what is wrong and what was expected."""
    monkeypatch.chdir(tmp_path)
    file = Path("a.csv")

    def refused(path: Path) -> str:
        with pytest.raises(UsageError) as error:
            read_traces([path])
        return str(error.value)

    texts = {"no file": refused(file), "no .csv file": refused(Path())}
    for row in BAD_ROWS.splitlines():
        texts[row] = refused(write(file, row))
    for name, content in BAD_FILES.items():
        file.write_text(content, errors="surrogateescape")
        texts[name] = refused(file)
    assert_golden("traces", texts)


# ---- The clock -----------------------------------------------------------------------------------


def run(path: Path, *times: int, sync: str = "1.5") -> Run:
    """Return a run of two ranks with steps of 2 s at *times*."""
    rows = [
        f"j,{rank},a,{step},{time},,0.5,{sync}"
        for step, time in enumerate(times)
        for rank in range(2)
    ]
    (path / "a.csv").write_text("\n".join([HEADER, *rows, ""]))
    (found,) = read_traces([path])
    return found


@pytest.mark.parametrize(
    ("times", "scale", "ended"),
    [
        ((2, 12), 1.0, [2, 12]),
        # A first step that cannot have ended by its time_s began then; the run begins with it.
        ((0, 10), 1.0, [2, 12]),
        ((99, 109), 1.0, [2, 12]),
        # Ten times slower is ten times later.
        ((99, 109), 10.0, [20, 120]),
        # Where all rows have one time_s, the steps follow each other.
        ((0, 0, 0), 1.0, [2, 4, 6]),
    ],
)
def test_steps_are_placed_on_one_clock(
    tmp_path: Path, times: tuple[int, ...], scale: float, ended: list[float]
) -> None:
    line = timeline(run(tmp_path, *times), scale)

    assert [list(of_rank.values()) for of_rank in line.ends.values()] == [ended, ended]
    assert line.seconds == ended[-1]


def test_zeros_everywhere_are_no_measured_wait(tmp_path: Path) -> None:
    """A single wait above 0 shows that waits were measured."""
    for sync, measured in (("0", False), ("", False), ("1.5", True)):
        assert has_sync(run(tmp_path, 2, 4, sync=sync)) is measured


# ---- Stretches ---------------------------------------------------------------------------------


def rows(has: Callable[[int, int], bool], steps: int = 100, ranks: int = 3) -> Run:
    """Return a run with steps of 1 s, with the rows of rank and step that it *has*."""
    found = Run("j", 0)
    for step in range(steps):
        for rank in range(ranks):
            if has(rank, step):
                found.add(rank, step, step + 1.0, {"data": 1.0})
    return found


def split(one: Run) -> list[TraceStretch]:
    return stretches(one, timeline(one, 2.0))


def test_ranks_that_come_or_go_begin_a_stretch() -> None:
    """Whoever lacks twenty steps in a row is away; one that comes back is there again."""
    elastic = split(rows(lambda rank, step: [True, step < 50 or step >= 70, step >= 30][rank]))

    assert [(each.ranks, each.steps[0], each.begin, each.end) for each in elastic] == [
        ((0, 1), 0, 0, 60),
        ((0, 1, 2), 30, 60, 100),
        ((0, 2), 50, 100, 140),
        ((0, 1, 2), 70, 140, 200),
    ]
    assert [len(each.steps) for each in elastic] == [30, 20, 20, 30]


@pytest.mark.parametrize(
    ("has", "steps", "whole"),
    [
        (lambda rank, step: rank or not 40 <= step < 59, 100, 81),
        (lambda rank, step: (7 * step + rank) % 10 > 0, 100, 70),
        (lambda rank, step: 5 * rank <= step < 100 - 3 * rank, 100, 84),
        # Of three steps two are many.
        (lambda rank, step: rank < 2 or step < 2, 3, 2),
    ],
    ids=["a gap", "here and there", "ragged", "short"],
)
def test_missing_rows_leave_steps_out(
    has: Callable[[int, int], bool], steps: int, whole: int
) -> None:
    """Fewer than twenty missing rows begin no new stretch; their steps are not whole."""
    (one,) = split(rows(has, steps))
    assert split(rows(lambda rank, step: step % 3 == rank)) == []  # No step is whole.

    assert (one.ranks, len(one.steps)) == ((0, 1, 2), whole)
    assert (one.begin, one.end) == (0.0, 2.0 * steps)
