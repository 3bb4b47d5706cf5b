"""The view: a table of jobs, and of the job in focus its verdict and its ranks."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from exporter.top import words
from exporter.top.bars import bar, legend
from exporter.top.model import Fleet, Job, Rank
from exporter.top.ranks import holds_up

# At this width, and at twice 80, a terminal has room for the less important columns.
WIDE, VERY_WIDE = 110, 140
MOST_SENTENCES: Final = 3
QUIET: Final = ("healthy", "finished", "starting", "no_probe")


class JobColumn(NamedTuple):
    """A column of the table of jobs; *from_width* is the narrowest terminal that shows it."""

    title: str
    cell: Callable[[Job], str]
    from_width: int = 0
    is_number: bool = False


class RankColumn(NamedTuple):
    """A column of the table of ranks."""

    title: str
    cell: Callable[[Rank], str]
    from_width: int = 0
    is_number: bool = False


JOB_COLUMNS: Final = (
    JobColumn("Cluster", lambda job: job.cluster),
    JobColumn("Job", lambda job: job.job_id),
    JobColumn("GPUs lost", words.lost, is_number=True),
    JobColumn("Per hour", words.cost, is_number=True),
    JobColumn("Rank · stage", words.culprit),
    JobColumn("Cause", lambda job: job.cause or words.NOTHING, WIDE),
    JobColumn("Since", lambda job: words.span(job.since_seconds), is_number=True),
    JobColumn("Slowdown", words.slowdown, WIDE, is_number=True),
    JobColumn("Steps", lambda job: words.count(job.steps), WIDE, is_number=True),
    JobColumn("Step", lambda job: words.span(job.step_seconds), is_number=True),
    JobColumn("Judged", words.judged, WIDE),
)
RANKS_BEFORE_BAR: Final = (
    RankColumn("Rank", lambda rank: str(rank.rank), is_number=True),
    RankColumn("Node", lambda rank: rank.node or words.NOTHING),
    RankColumn("Local", lambda rank: rank.local_rank or words.NOTHING, WIDE, is_number=True),
    RankColumn("GPU", lambda rank: rank.gpu or words.NOTHING, is_number=True),
    RankColumn("PID", lambda rank: str(rank.pid or words.NOTHING), is_number=True),
)
RANKS_AFTER_BAR: Final = (
    RankColumn("Own", lambda rank: words.span(rank.own_seconds), VERY_WIDE, is_number=True),
    RankColumn("Wait", lambda rank: words.span(rank.wait_seconds), VERY_WIDE, is_number=True),
    RankColumn("Late in", words.late_in),
    RankColumn("Lost", lambda rank: words.few(rank.late.gpus_lost) if rank.late else ""),
    RankColumn("Now in", words.now_in),
    RankColumn("Last report", words.last_report, WIDE),
)


class View:
    """*fleet*, as rich draws it; at most *most_jobs* rows."""

    def __init__(self, fleet: Fleet, most_jobs: int | None = None) -> None:
        self._fleet = fleet
        self._most = most_jobs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for the width of *options*."""
        yield from self._parts(options.max_width, console.color_system is not None)

    def _parts(self, width: int, coloured: bool) -> Iterator[RenderableType]:
        fleet = self._fleet
        if fleet.jobs:
            yield _jobs_table(fleet.jobs[: self._most], width)
        if self._most is not None and len(fleet.jobs) > self._most:
            yield Text(f"and {len(fleet.jobs) - self._most} more jobs", "bright_black")
        if fleet.focus is not None:
            yield from _job_parts(fleet.focus, width, coloured)
        else:
            yield from _sentences(fleet.jobs)


def _sentences(jobs: Sequence[Job]) -> Iterator[Text]:
    """Say more of the most urgent jobs."""
    loud = [job for job in jobs if job.sentence and job.state not in QUIET]
    if loud:
        yield Text()
    for job in loud[:MOST_SENTENCES]:
        said = Text(f"{job.job_id}: ", words.STATE_STYLES[job.state])
        yield said.append(job.sentence, "default")


def _jobs_table(jobs: Sequence[Job], width: int) -> Table:
    columns = [each for each in JOB_COLUMNS if each.from_width <= width and _is_used(each, jobs)]
    table = _table()
    table.add_column("State", no_wrap=True)
    for column in columns:
        _add(table, column)
    for job in jobs:
        style = words.STATE_STYLES[job.state]
        cells = [Text(column.cell(job)) for column in columns]
        table.add_row(Text(words.state(job), style), *cells)
    return table


def _is_used(column: JobColumn, jobs: Sequence[Job]) -> bool:
    """Say whether any job has a value there; only a Prometheus knows some of them."""
    if column.title == "Job":
        return True
    return any(column.cell(job) not in ("", words.NOTHING) for job in jobs)


def _job_parts(job: Job, width: int, coloured: bool) -> Iterator[RenderableType]:
    yield Text()
    yield Text(job.sentence or words.state(job), words.STATE_STYLES[job.state])
    yield from (Text(said, "bright_black") for said in job.details)
    if job.first_action:
        yield Text.assemble(("First: ", "bold"), job.first_action)
    if not job.ranks:
        return
    yield Text()
    yield _ranks_table(job, width)
    if job.ranks_left_out:
        yield Text(f"and {job.ranks_left_out:,} more ranks", "bright_black")
    yield legend((stage for rank in job.ranks for stage in rank.stage_seconds or ()), coloured)


def _ranks_table(job: Job, width: int) -> Table:
    before = [each for each in RANKS_BEFORE_BAR if each.from_width <= width]
    after = [each for each in RANKS_AFTER_BAR if each.from_width <= width]
    table = _table()
    for column in before:
        _add(table, column)
    bar_width = 14 if width < WIDE else 26 if width < VERY_WIDE else 36
    table.add_column("Step", no_wrap=True, min_width=bar_width)
    for column in after:
        _add(table, column)
    longest = max((sum((rank.stage_seconds or {}).values()) for rank in job.ranks), default=0.0)
    for rank in job.ranks:
        step = bar(rank.stage_seconds, longest, bar_width)
        left, right = ([Text(each.cell(rank)) for each in side] for side in (before, after))
        table.add_row(*left, step, *right, style=_row_style(rank, job.state))
    return table


def _row_style(rank: Rank, state: str) -> str:
    if (rank.late is not None and rank.late.wakes) or holds_up(rank, state):
        return "bold red"
    if rank.silent:
        return "dark_orange"
    return "bright_black" if rank.finished else ""


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bright_black")


def _add(table: Table, column: JobColumn | RankColumn) -> None:
    justify = "right" if column.is_number else "left"
    table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
