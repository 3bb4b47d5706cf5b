"""What is on the terminal, at every width."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from exporter.live.sentences import LateView
from rankskew.top.model import STATE_WORDS, FleetStatus, JobStatus, Rank
from rankskew.top.view import View
from tests.rankskew.golden import assert_golden

LATE = LateView(2, "all", "data", "persistent", 0.51, 1.9, 240.0, True)
STAGES = {"optimizer": 0.012, "data": 0.02, "forward": 0.09, "backward": 0.18, "sync": 0.17}
RANK = Rank(0, "node-with-a-long-name-17", "0", "0", "GPU-0", 4711, STAGES, stage="forward")
LATE_RANK = replace(
    RANK, rank=2, late=LATE, stage_seconds=STAGES | {"data": 0.18, "sync": 0.01}, pid=2222
)
OTHERS = (
    replace(RANK, rank=3, silent=True, report_age_seconds=75.0),
    replace(RANK, rank=4, finished=True, late=replace(LATE, kind="mild")),
    replace(RANK, rank=5, stage="sync", stage_elapsed_seconds=190.0, report_age_seconds=1.0),
)
JOB = JobStatus(
    job_id="llama-70b-pretrain",
    state="straggler",
    sentence="Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it.",
    details=("Steps take 1.48 times as long.",),
    first_action="`py-spy dump --pid 2222`",
    world_size=8,
    gpus_lost=1.94,
    cost_per_hour=4.85,
    late=(LATE, replace(LATE, rank=3)),
    culprit=(2, "data"),
    cause="input: workers",
    since_seconds=240.0,
    slowdown=1.48,
    steps=12_345,
    step_seconds=0.472,
    coverage=1.0,
)
HEALTHY = JobStatus("resnet", state="healthy", sentence="All is well.", world_size=8, gpus_lost=0.1)
UNPROBED = replace(HEALTHY, state="no_probe", world_size=None)


def drawn(fleet: FleetStatus, width: int, colours: bool = False, most: int | None = None) -> str:
    """Return what *fleet* looks like on a terminal of *width*."""
    out = io.StringIO()
    Console(
        file=out,
        width=width,
        highlight=False,
        force_terminal=colours,
        color_system="truecolor" if colours else None,
    ).print(View(fleet, most))
    return out.getvalue()


def focused(job: JobStatus, *ranks: Rank, seen: int = 0) -> FleetStatus:
    return FleetStatus("x", [replace(job, ranks=ranks, ranks_seen=seen)])


def test_views_are_the_golden_ones() -> None:
    """A wide terminal has all there is to know, a narrow one keeps what matters.

    Names are shortened before figures; without steps there are no empty columns.
    """
    jobs = [JOB, replace(HEALTHY, slowdown=1.004, step_seconds=0.3)]
    clusters = [replace(JOB, cluster="eu"), replace(HEALTHY, cluster="us", reason="no_sync")]
    small = [replace(HEALTHY, gpus_lost=lost, slowdown=1.006) for lost in (0.0, 0.97, 8.0)]
    ranks = focused(JOB, LATE_RANK, RANK, *OTHERS, seen=16_369)
    bare = focused(UNPROBED, replace(RANK, stage_seconds=None, stage=None))
    views = {
        "jobs, 160 columns": drawn(FleetStatus("x", jobs), 160),
        "jobs, 80 columns": drawn(FleetStatus("x", jobs), 80, most=1),
        "a long name": drawn(FleetStatus("x", [replace(JOB, job_id="x" * 200)]), 80),
        "two clusters": drawn(FleetStatus("x", clusters), 160),
        "GPUs lost": drawn(FleetStatus("x", small), 120),
        "ranks, 160 columns": drawn(ranks, 160),
        "ranks, 100 columns": drawn(ranks, 100),
        "a rank without the probe": drawn(bare, 160),
    }
    assert_golden("top", {name: trimmed(view) for name, view in views.items()})


def trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("name", ["llama", "x" * 200, "ジョブ" * 30])
def test_no_line_is_wider_than_the_terminal(width: int, name: str) -> None:
    """Long names of jobs and nodes are shortened, never wrapped by the terminal."""
    job = replace(JOB, job_id=name)
    for fleet in (
        FleetStatus("x", [job, HEALTHY, replace(HEALTHY, cluster=name)]),
        focused(job, LATE_RANK, RANK, replace(RANK, node=name)),
    ):
        assert max(cell_len(line) for line in drawn(fleet, width).splitlines()) <= width


@pytest.mark.parametrize(("state", "word"), STATE_WORDS.items())
def test_states_are_told_in_words(state: str, word: str) -> None:
    assert (
        drawn(FleetStatus("x", [replace(HEALTHY, state=state)]), 80)
        .splitlines()[1]
        .startswith(word)
    )


@pytest.mark.parametrize(
    ("state", "colour"), [("hung", "31m"), ("ranks_missing", "38;5;208m"), ("healthy", "32m")]
)
def test_states_and_stages_have_colours(state: str, colour: str) -> None:
    """Red needs someone now, orange soon, what is well is green; stages as on the dashboards."""
    assert colour in drawn(FleetStatus("x", [replace(HEALTHY, state=state)]), 80, colours=True)
    coloured = drawn(focused(JOB, LATE_RANK, RANK), 120, colours=True)
    assert "38;2;230;159;0m" in coloured  # data, #e69f00
