"""What is on the terminal, at every width."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from exporter.live.sentences import LateView
from rankskew.top.model import STATE_WORDS, Fleet, Job, Rank
from rankskew.top.view import View

LATE = LateView(2, "all", "data", "persistent", 0.51, 1.9, 240.0, True)
STAGES = {"optimizer": 0.012, "data": 0.02, "forward": 0.09, "backward": 0.18, "sync": 0.17}
RANK = Rank(0, "node-with-a-long-name-17", "0", "0", "GPU-0", 4711, STAGES, stage="forward")
LATE_RANK = replace(
    RANK, rank=2, late=LATE, stage_seconds=STAGES | {"data": 0.18, "sync": 0.01}, pid=2222
)
JOB = Job(
    job_id="llama-70b-pretrain",
    state="straggler",
    sentence="Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it.",
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
HEALTHY = Job("resnet", state="healthy", world_size=8, gpus_lost=0.1, step_seconds=0.3)


def drawn(fleet: Fleet, width: int, colours: bool = False, most: int | None = None) -> str:
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


def focused(job: Job, *ranks: Rank, left_out: int = 0) -> Fleet:
    """Return a fleet of one job with *ranks*."""
    job = replace(job, ranks=ranks, ranks_left_out=left_out)
    return Fleet("x", [job], focus=job)


def test_wide_terminal_shows_everything() -> None:
    """160 columns have room for all there is to know of a job."""
    text = drawn(Fleet("x", [JOB, HEALTHY]), 160)

    heads, row = text.splitlines()[:2]
    assert heads.split("  ")[0] == "State"
    assert " ".join(row.split()) == (
        "Straggler llama-70b-pretrain 1.9 of 8 $4.85 2 · data +1 input: workers 4 min 1.48x "
        "12,345 472 ms 100%"
    )


@pytest.mark.parametrize(("slowdown", "shown"), [(1.004, False), (1.006, True)])
def test_slowdown_is_shown_if_there_is_one(slowdown: float, shown: bool) -> None:
    """1.00x is none."""
    text = drawn(Fleet("x", [replace(JOB, slowdown=slowdown)]), 160)

    assert (f"{slowdown:.2f}x" in text) is shown


def test_narrow_terminal_keeps_what_matters() -> None:
    """80 columns show state, job, GPUs lost and the late rank in full."""
    text = drawn(Fleet("x", [JOB, HEALTHY]), 80)

    assert "Judged" not in text
    for kept in ("Straggler", "llama-70b-pretrain", "1.9 of 8", "2 · data +1", "$4.85"):
        assert kept in text


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("name", ["llama", "x" * 200, "ジョブ" * 30])
def test_no_line_is_wider_than_the_terminal(width: int, name: str) -> None:
    """Long names of jobs and nodes are shortened, never wrapped by the terminal."""
    job = replace(JOB, job_id=name)
    for fleet in (
        Fleet("x", [job, HEALTHY, replace(HEALTHY, cluster=name)]),
        focused(job, LATE_RANK, RANK, replace(RANK, node=name)),
    ):
        assert max(cell_len(line) for line in drawn(fleet, width).splitlines()) <= width


def test_long_name_gives_way_to_figures() -> None:
    """The job's name is shortened before a figure is."""
    text = drawn(Fleet("x", [replace(JOB, job_id="x" * 200)]), 80)

    assert "…" in text
    assert "1.9 of 8" in text


@pytest.mark.parametrize(("state", "word"), STATE_WORDS.items())
def test_states_are_told_in_words(state: str, word: str) -> None:
    """Each state has its word."""
    assert drawn(Fleet("x", [replace(HEALTHY, state=state)]), 80).splitlines()[1].startswith(word)


@pytest.mark.parametrize(
    ("state", "colour"), [("hung", "31m"), ("ranks_missing", "38;5;208m"), ("healthy", "32m")]
)
def test_states_have_colours(state: str, colour: str) -> None:
    """Red needs someone now, orange soon, and what is well is green."""
    assert colour in drawn(Fleet("x", [replace(HEALTHY, state=state)]), 80, colours=True)


def test_urgent_jobs_are_explained() -> None:
    """Below the table are the sentences of the jobs that need someone."""
    text = drawn(Fleet("x", [JOB, replace(HEALTHY, sentence="All is well.")]), 120)

    assert "llama-70b-pretrain: Rank 2 is slow loading data" in text
    assert "All is well." not in text


def test_clusters_are_shown_if_there_are_several() -> None:
    """One cluster is not worth a column."""
    one, other = replace(JOB, cluster="eu"), replace(HEALTHY, cluster="us")

    assert "Cluster" in drawn(Fleet("x", [one, other]), 160)
    assert "Cluster" not in drawn(Fleet("x", [one]), 160)


def test_ranks_of_the_job_in_focus() -> None:
    """A late rank is shown with its place, stage, cost and what it does now."""
    text = drawn(focused(JOB, LATE_RANK, RANK), 160)
    row = next(line for line in text.splitlines() if " 2222 " in line)

    for shown in ("node-with-a-long-name-17", "462 ms", "10 ms", "data +51%", "1.90", "forward"):
        assert shown in row
    assert text.index(" 2222 ") < text.index(" 4711 ")


def test_bars_compare_own_work_and_wait() -> None:
    """The late rank works while its peer waits; both steps are equally long."""
    late, peer = (
        line for line in drawn(focused(JOB, LATE_RANK, RANK), 100).splitlines() if "node-" in line
    )

    assert late.count("█") + late.count("░") == peer.count("█") + peer.count("░") == 20
    assert (late.count("░"), peer.count("░")) == (0, 7)


def test_stages_have_their_colours() -> None:
    """They are those of the page and the dashboards; without colours there are two blocks."""
    fleet = focused(JOB, LATE_RANK, RANK)

    assert "38;2;230;159;0m" in drawn(fleet, 120, colours=True)  # data, #e69f00
    assert "██ data" not in drawn(fleet, 120)
    assert "█ own work  ░ waits for others" in drawn(fleet, 120)


def test_job_without_steps_has_no_empty_columns() -> None:
    """A job known from its processes only: places, and nothing that is not known."""
    job = replace(HEALTHY, state="no_probe")
    text = drawn(focused(job, replace(RANK, stage_seconds=None, stage=None)), 160)

    assert "4711" in text
    assert "Step" not in text.splitlines()[-2]
    assert "waits for others" not in text


def test_others_are_counted() -> None:
    """What has no row is not hidden."""
    assert "and 16,364 more ranks" in drawn(focused(JOB, LATE_RANK, left_out=16_364), 80)
    assert "more job" not in drawn(Fleet("x", [JOB, HEALTHY]), 80)
    assert "and 1 more job\n" in drawn(Fleet("x", [JOB, HEALTHY]), 80, most=1)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"silent": True}, "silent"),
        ({"finished": True}, "finished"),
        ({"stage": "sync", "stage_elapsed_seconds": 190.0}, "sync 3 min"),
    ],
)
def test_what_a_rank_does_now(changes: dict[str, object], word: str) -> None:
    """A rank that is stuck, silent or has ended says so."""
    rank = replace(RANK, **changes)  # type: ignore[arg-type]  # fields of Rank

    assert word in drawn(focused(JOB, rank), 120)


@pytest.mark.parametrize(
    ("lost", "shown"), [(0.0, "0 of 8"), (0.97, "0.97 of 8"), (1.94, "1.9 of 8"), (8.0, "8 of 8")]
)
def test_gpus_lost_are_short(lost: float, shown: str) -> None:
    """Parts of a GPU matter while they are few."""
    assert shown in drawn(Fleet("x", [replace(JOB, gpus_lost=lost)]), 120)
