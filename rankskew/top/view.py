"""The view: a table of jobs, and of the job in focus its verdict and its ranks."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from exporter.live import states
from rankskew.top import words
from rankskew.top.bars import bar, legend
from rankskew.top.columns import Column, table
from rankskew.top.model import FleetStatus, JobStatus, Rank
from rankskew.top.ranks import holds_up

MOST_SENTENCES: Final = 3
QUIET: Final = (states.HEALTHY, states.FINISHED, states.STARTING, states.NO_PROBE)
FAINT: Final = "bright_black"

JOB_COLUMNS: Final[Sequence[Column[JobStatus]]] = (
    Column("Job", lambda job: job.job_id, is_name=True),
    Column("GPUs lost", words.lost, justify="right"),
    Column("Per hour", words.cost, gives_way=2, justify="right"),
    Column("Rank · stage", words.culprit),
    Column("Cause", lambda job: job.cause or words.NOTHING, gives_way=3),
    Column("Since", lambda job: words.span(job.since_seconds), gives_way=1, justify="right"),
    Column("Slowdown", words.slowdown, gives_way=4, justify="right"),
    Column("Steps", lambda job: words.count(job.steps), gives_way=7, justify="right"),
    Column("Step", lambda job: words.span(job.step_seconds), gives_way=5, justify="right"),
    Column("Judged", words.judged, gives_way=6),
)


class View:
    """*fleet*, as rich draws it; at most *most_jobs* rows."""

    def __init__(self, fleet: FleetStatus, most_jobs: int | None = None) -> None:
        self._fleet = fleet
        self._most = most_jobs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for the width of *options*."""
        coloured = console.color_system is not None
        fleet = self._fleet
        jobs = fleet.jobs[: self._most]
        if jobs:
            yield table(_job_columns(jobs), jobs, lambda job: "", options.max_width)
        yield from _others(len(fleet.jobs) - len(jobs), "job")
        if fleet.focus is None:
            yield from _sentences(fleet.jobs)
        else:
            yield from _job_parts(fleet.focus, options.max_width, coloured)


def _job_columns(jobs: Sequence[JobStatus]) -> list[Column[JobStatus]]:
    state = Column("State", _state)
    cluster: Column[JobStatus] = Column("Cluster", lambda job: job.cluster, is_name=True)
    clusters = [cluster] if len({job.cluster for job in jobs}) > 1 else []
    return [state, *clusters, *JOB_COLUMNS]


def _others(count: int, what: str) -> Iterator[Text]:
    if count:
        yield Text(f"and {count:,} more {what}{'s' if count > 1 else ''}", FAINT)


def _state(job: JobStatus) -> Text:
    return Text(words.state(job), words.STATE_STYLES[job.state])


def _sentences(jobs: Sequence[JobStatus]) -> Iterator[Text]:
    """Say more of the most urgent jobs."""
    loud = [job for job in jobs if job.sentence and job.state not in QUIET]
    if loud:
        yield Text()
    for job in loud[:MOST_SENTENCES]:
        yield Text.assemble((f"{job.job_id}: ", words.STATE_STYLES[job.state]), job.sentence)


def _job_parts(job: JobStatus, width: int, coloured: bool) -> Iterator[RenderableType]:
    yield Text()
    yield Text(job.sentence or words.state(job), words.STATE_STYLES[job.state])
    yield from (Text(said, FAINT) for said in job.details)
    if job.first_action:
        yield Text.assemble(("First: ", "bold"), job.first_action)
    if not job.ranks:
        return
    yield Text()
    yield table(_rank_columns(job, width), job.ranks, partial(_row_style, job.state), width)
    yield from _others(job.ranks_left_out, "rank")
    stages = {stage for rank in job.ranks for stage in rank.stage_seconds or ()}
    if stages:
        yield legend(stages, coloured)


def _rank_columns(job: JobStatus, width: int) -> list[Column[Rank]]:
    longest = max((sum((rank.stage_seconds or {}).values()) for rank in job.ranks), default=0.0)
    bar_width = max(8, min(40, width // 5))
    return [
        Column("Rank", lambda rank: str(rank.rank), justify="right"),
        Column("Node", lambda rank: rank.node or "", is_name=True),
        Column("Local", lambda rank: rank.local_rank or "", gives_way=4, justify="right"),
        Column("GPU", lambda rank: rank.gpu or "", justify="right"),
        Column("PID", lambda rank: str(rank.pid or ""), justify="right"),
        Column("Step", lambda rank: bar(rank.stage_seconds, longest, bar_width)),
        Column("Own", lambda rank: words.span(rank.own_seconds), gives_way=3, justify="right"),
        Column("Wait", lambda rank: words.span(rank.wait_seconds), gives_way=2, justify="right"),
        Column("Late in", words.late_in),
        Column("GPUs lost", words.rank_lost, justify="right"),
        Column("Now in", words.now_in, gives_way=1),
        Column("Last report", words.last_report, gives_way=5),
    ]


def _row_style(state: str, rank: Rank) -> str:
    if (rank.late is not None and rank.late.is_called_late) or holds_up(rank, state):
        return "bold red"
    if rank.silent:
        return "dark_orange"
    return FAINT if rank.finished else ""
