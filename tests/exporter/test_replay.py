"""`rankskew replay` says who was late and what it cost, or in one line why it cannot."""

from pathlib import Path

import pytest

from exporter.__main__ import main

HEADER = "job_id,rank,peer_group,step,time_s,data_s,forward_s,sync_s"


def trace(steps: int = 8, late: float = 0.2, job_id: str = "llama") -> str:
    """Return four ranks in two peer groups of equal work, of which rank 1 is late in data."""
    rows = [HEADER]
    for step in range(steps):
        for rank in range(4):
            data = 0.1 + late * (rank == 1)
            wait = 0.01 + late * (rank != 1)
            rows.append(f"{job_id},{rank},pp{rank // 2},{step},{step}.5,{data},0.3,{wait}")
    return "\n".join(rows) + "\n"


def replay(capsys: pytest.CaptureFixture[str], *paths: Path) -> str:
    """Return what the command prints."""
    assert main(["replay", *map(str, paths)]) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *paths: Path) -> str:
    """Return the one line with which the command ends."""
    assert main(["replay", *map(str, paths)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_late_rank_is_named_with_its_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace with a planted straggler is accounted for to the GPU-second."""
    path = tmp_path / "trace.csv"
    path.write_text(trace())

    assert replay(capsys, path) == (
        "job llama, attempt 0: 8 steps of 4 ranks\n"
        "  lost to waiting: 4.80 GPU-seconds, 0.984 GPUs of 4\n"
        "    rank 1 in data: 4.80 GPU-seconds, 0.984 GPUs\n"
        "    now one rank, now another: 0.00 GPU-seconds, 0.000 GPUs\n"
        "  peer group pp0: 2 ranks waited 1.60 GPU-seconds, 0.328 GPUs; "
        "rank 1 waited least, 0.00 s\n"
        "  peer group pp1: 2 ranks waited 3.20 GPU-seconds, 0.656 GPUs; "
        "rank 2 waited least, 1.60 s\n"
        "  late: rank 1 in data\n"
    )


def test_equal_ranks_name_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy trace is said to be healthy."""
    (tmp_path / "trace.csv").write_text(trace(late=0.0))

    assert "  no rank is late\n" in replay(capsys, tmp_path)


def test_wait_that_was_not_measured_names_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blank cells are not zeros: without the wait nobody can be told from a victim."""
    rows = [row.rsplit(",", 1)[0] + "," for row in trace().splitlines()[1:]]
    (tmp_path / "trace.csv").write_text("\n".join([HEADER, *rows, ""]))
    printed = replay(capsys, tmp_path)

    assert (
        "  nobody can be named: the wait in collectives was not measured on every rank" in printed
    )
    assert "  if all waited for the slowest, lost: 4.80 GPU-seconds" in printed


def test_rank_whose_wait_was_not_measured_blinds_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One rank with blank cells may be the victim or the culprit: a blank is no zero."""
    rows = [
        row.rsplit(",", 1)[0] + "," if row.startswith("llama,1,") else row
        for row in trace().splitlines()
    ]
    (tmp_path / "trace.csv").write_text("\n".join([*rows, ""]))

    assert (
        "  nobody can be named: the wait in collectives was not measured on every rank"
        in replay(capsys, tmp_path)
    )


def test_files_of_the_ranks_are_joined_and_attempts_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory holds one file a rank and attempt; a restart counts its steps from 0 again."""
    header, *rows = trace().splitlines()
    for attempt, late in ((0, 0.2), (1, 0.0)):
        header, *rows = trace(late=late).splitlines()
        for rank in range(4):
            mine = [row for row in rows if row.startswith(f"llama,{rank},")]
            path = tmp_path / f"llama-{attempt}-{rank}.csv"
            path.write_text("\n".join([header, *mine, ""]))
    (tmp_path / "llama-2-0.csv").touch()  # Killed before its first row.
    first, second = replay(capsys, tmp_path).split("\n\n")

    assert first.startswith("job llama, attempt 0: 8 steps of 4 ranks\n")
    assert first.endswith("  late: rank 1 in data")
    assert second.startswith("job llama, attempt 1: 8 steps of 4 ranks\n")
    assert second.endswith("  no rank is late\n")


def test_steps_that_lack_a_rank_are_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only steps with every rank can be joined; how many others there are is said."""
    (tmp_path / "trace.csv").write_text(trace() + "llama,0,pp0,8,8.5,9,9,0\n")

    assert "8 steps of 4 ranks (1 more lack a rank and are left out)" in replay(capsys, tmp_path)


def test_ranks_that_share_no_step_cannot_be_accounted_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace without one whole step is no error, and says so."""
    (tmp_path / "a.csv").write_text(f"{HEADER}\nllama,0,all,0,0,1,1,0\nllama,1,all,1,0,1,1,0\n")

    assert "no step has all ranks" in replay(capsys, tmp_path)


def test_row_cut_off_by_a_kill_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The end of a killed process's file costs one row, and no silence."""
    path = tmp_path / "trace.csv"
    path.write_text(trace() + "llama,0,pp0,8,8.5,0.1,0.")
    assert main(["replay", str(path)]) == 0

    output = capsys.readouterr()
    assert "8 steps of 4 ranks\n" in output.out
    assert output.err == f"rankskew: {path}: its last row has no end and is left out\n"


def test_repeated_row_is_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same row twice, or the same file twice, changes nothing."""
    path = tmp_path / "trace.csv"
    path.write_text(trace())

    assert replay(capsys, path, path) == replay(capsys, path)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("llama,0,pp0,0,0.5,0.1,0.3", "it has not as many cells"),
        ("llama,0,pp0,0,0.5,0.1,0.3,0.2,9", "it has not as many cells"),
        ("llama,x,pp0,0,0.5,0.1,0.3,0.2", "rank is 'x', not a whole number"),
        ("llama,0,pp0,-1,0.5,0.1,0.3,0.2", "step is '-1', not a whole number"),
        ("llama,0,pp0,0,soon,0.1,0.3,0.2", "time_s is 'soon', not a number of seconds"),
        ("llama,0,pp0,0,0.5,nan,0.3,0.2", "data_s is 'nan', not a number of seconds"),
        ("llama,0,pp0,0,0.5,0.1,-1,0.2", "forward_s is '-1', not a number of seconds"),
        ("llama,0,pp0,0,0.5,9.9,0.3,0.2", "rank 0 of job 'llama' has two times for step 0; keep"),
        ('llama,0,"pp0"x,0,0.5,0.1,0.3,0.2', "',' expected after '\"'"),
    ],
)
def test_bad_row_is_named_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, complaint: str
) -> None:
    """A broken row ends the command with its place and what is wrong, and prints no half result."""
    (tmp_path / "a.csv").write_text(trace(job_id="fine"))
    path = tmp_path / "b.csv"
    path.write_text(trace() + row + "\n")

    assert f"{path}, line 34: {complaint}" in refusal(capsys, tmp_path)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("rank,peer_group,step,time_s,data_s", "line 1: the header has no column job_id"),
        (HEADER + ",lunch_s", "line 1: column 'lunch_s' is no stage; use optimizer_s"),
        (HEADER + ",data_s", "line 1: the header needs columns of stages, each once"),
        ("job_id,rank,peer_group,step,time_s", "line 1: the header needs columns of stages"),
    ],
)
def test_bad_header_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str, complaint: str
) -> None:
    """A file that is no trace is found at its first line."""
    path = tmp_path / "a.csv"
    path.write_text(header + "\n")

    assert complaint in refusal(capsys, path)


def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, an empty directory, a file of bytes or without a step: one line each."""
    assert "cannot read" in refusal(capsys, tmp_path / "missing.csv")
    assert "has no .csv file" in refusal(capsys, tmp_path)
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\n")
    assert "is not UTF-8 text" in refusal(capsys, tmp_path)
    (tmp_path / "a.csv").write_text(HEADER + "\n")
    assert "there is no step in these files" in refusal(capsys, tmp_path)
