"""The view: a table of jobs, and of the job in focus its verdict and its ranks."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final, Generic, Literal, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from exporter.live import states
from exporter.live.sentences import is_slower
from exporter.live.wording import duration
from exporter.vocabulary import words
from rank_probe.wire.stages import STAGES, SYNC
from rankskew.top.model import STATE_WORDS, UNKNOWN, FleetStatus, JobStatus, Rank, holds_up

MOST_SENTENCES: Final = 3
QUIET: Final = (states.HEALTHY, states.FINISHED, states.STARTING, states.NO_PROBE)
FAINT: Final = "bright_black"
WAIT: Final = STAGES[SYNC]
OWN_BLOCK: Final = "█"
WAIT_BLOCK: Final = "░"
BLOCKS: Final = dict.fromkeys(STAGES, OWN_BLOCK) | {WAIT: WAIT_BLOCK}
NOTHING: Final = "–"
STATE_STYLES: Final = {
    name: words.COLOURS[state.colour].terminal for name, state in words.STATES.items()
} | {UNKNOWN: words.COLOURS["grey"].terminal}
STAGE_STYLES: Final = {name: stage.colour for name, stage in words.STAGES.items()}

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column whose *cell* is text, or drawn.

    In a narrow terminal the column with the highest *gives_way* goes first; one with 0 stays. If
    that is not enough, columns that are a *name* are shortened.
    """

    title: str
    cell: Callable[[Row], str | Text]
    gives_way: int = 0
    justify: Literal["left", "right"] = "left"
    is_name: bool = False


# ---- Cells ---------------------------------------------------------------------------------------


def _lost(job: JobStatus) -> str:
    """Return how many of its GPUs *job* loses: 1.9 of 8."""
    if job.gpus_lost is None or job.state in (states.FINISHED, states.NO_PROBE):
        return NOTHING if job.world_size is None else f"{NOTHING} of {job.world_size}"
    return f"{_gpus(job.gpus_lost)} of {job.world_size or UNKNOWN}"


def _gpus(count: float) -> str:
    """Return a count of GPUs, which need not be whole: 0.97, 1.9, 12."""
    if count < 0.005:
        return "0"
    return f"{count:.2f}" if count < 0.995 else f"{count:.1f}".removesuffix(".0")


def _culprit(job: JobStatus) -> str:
    """Return the rank to look at and its stage, and how many more ranks are late."""
    if job.culprit is None:
        return NOTHING
    rank, stage = job.culprit
    others = sum(late.is_called_late and late.rank != rank for late in job.late)
    return f"{rank} · {stage}" + (f" +{others}" if others else "")


def _slowdown(job: JobStatus) -> str:
    return f"{job.slowdown:.2f}x" if is_slower(job.slowdown) else NOTHING


def _judged(job: JobStatus) -> str:
    """Return the share of the job that is judged, or why it is not."""
    if job.reason is not None:
        return job.reason.replace("_", " ")
    return _number(job.coverage, "{:.0%}")


def _number(number: float | None, form: str) -> str:
    return NOTHING if number is None else form.format(number)


def _span(seconds: float | None) -> str:
    """Return a time of any length, with milliseconds for those of a step."""
    if seconds is None:
        return NOTHING
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 10 else duration(seconds)


def _late_in(rank: Rank) -> str:
    if rank.late is None:
        return ""
    mark = words.late_mark(rank.late.kind)
    return f"{rank.late.stage} +{rank.late.ratio:.0%}" + (f" ({mark})" if mark else "")


def _now_in(rank: Rank) -> str:
    """Return what *rank* does now, and for how long if that is remarkable."""
    if rank.finished:
        return "finished"
    if rank.silent:
        return "silent"
    elapsed = rank.stage_elapsed_seconds
    told = f" {duration(elapsed)}" if elapsed is not None and elapsed >= 2 else ""
    return (rank.stage or NOTHING) + told


def _last_report(rank: Rank) -> str:
    age = rank.report_age_seconds
    if age is None or rank.finished:
        return NOTHING
    return "now" if age < 2 else f"{duration(age)} ago"


# ---- The view ------------------------------------------------------------------------------------

JOB_COLUMNS: Final[Sequence[Column[JobStatus]]] = (
    Column("State", lambda job: Text(STATE_WORDS[job.state], STATE_STYLES[job.state])),
    Column("Cluster", lambda job: job.cluster, is_name=True),
    Column("Job", lambda job: job.job_id, is_name=True),
    Column("GPUs lost", _lost, justify="right"),
    Column(
        "Per hour", lambda job: _number(job.cost_per_hour, "${:,.2f}"), gives_way=2, justify="right"
    ),
    Column("Rank · stage", _culprit),
    Column("Cause", lambda job: job.cause or NOTHING, gives_way=3),
    Column("Since", lambda job: _span(job.since_seconds), gives_way=1, justify="right"),
    Column("Slowdown", _slowdown, gives_way=4, justify="right"),
    Column("Steps", lambda job: _number(job.steps, "{:,}"), gives_way=7, justify="right"),
    Column("Step", lambda job: _span(job.step_seconds), gives_way=5, justify="right"),
    Column("Judged", _judged, gives_way=6),
)


@dataclass(frozen=True, slots=True)
class View:
    """*fleet*, as rich draws it; at most *most_jobs* rows."""

    fleet: FleetStatus
    most_jobs: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for the width of *options*."""
        fleet, jobs = self.fleet, self.fleet.jobs[: self.most_jobs]
        if jobs:
            several = len({job.cluster for job in jobs}) > 1
            columns = [each for each in JOB_COLUMNS if several or each.title != "Cluster"]
            yield _table(columns, jobs, lambda job: "", console, options)
        yield from _others(len(fleet.jobs) - len(jobs), "job")
        if fleet.focus is None:
            yield from _sentences(fleet.jobs)
        else:
            yield from _job_parts(fleet.focus, console, options)


def _others(count: int, what: str) -> Iterator[Text]:
    if count > 0:
        yield Text(f"and {count:,} more {what}{'s' if count > 1 else ''}", FAINT)


def _sentences(jobs: Sequence[JobStatus]) -> Iterator[Text]:
    """Say more of the most urgent jobs."""
    loud = [job for job in jobs if job.sentence and job.state not in QUIET]
    if loud:
        yield Text()
    for job in loud[:MOST_SENTENCES]:
        yield Text.assemble((f"{job.job_id}: ", STATE_STYLES[job.state]), job.sentence)


def _job_parts(
    job: JobStatus, console: Console, options: ConsoleOptions
) -> Iterator[RenderableType]:
    yield Text()
    yield Text(job.sentence or STATE_WORDS[job.state], STATE_STYLES[job.state])
    yield from (Text(said, FAINT) for said in job.details)
    if job.first_action:
        yield Text.assemble(("First: ", "bold"), job.first_action)
    if not job.ranks:
        return
    yield Text()
    columns, style = _rank_columns(job, options.max_width), partial(_row_style, job.state)
    yield _table(columns, job.ranks, style, console, options)
    yield from _others((job.ranks_seen or 0) - len(job.ranks), "rank")
    stages = {stage for rank in job.ranks for stage in rank.stage_seconds or ()}
    if stages:
        yield _legend(stages, console.color_system is not None)


def _rank_columns(job: JobStatus, width: int) -> list[Column[Rank]]:
    longest = max((sum((rank.stage_seconds or {}).values()) for rank in job.ranks), default=0.0)
    bar_width = max(8, min(40, width // 5))
    return [
        Column("Rank", lambda rank: str(rank.rank), justify="right"),
        Column("Node", lambda rank: rank.node or "", is_name=True),
        Column("Local", lambda rank: rank.local_rank or "", gives_way=4, justify="right"),
        Column("GPU", lambda rank: rank.gpu or "", justify="right"),
        Column("PID", lambda rank: str(rank.pid or ""), justify="right"),
        Column("Step", lambda rank: _bar(rank.stage_seconds, longest, bar_width)),
        Column("Own", lambda rank: _span(rank.own_seconds), gives_way=3, justify="right"),
        Column("Wait", lambda rank: _span(rank.wait_seconds), gives_way=2, justify="right"),
        Column("Late in", _late_in),
        Column(
            "GPUs lost",
            lambda rank: f"{rank.late.gpus_lost:.2f}" if rank.late else "",
            justify="right",
        ),
        Column("Now in", _now_in, gives_way=1),
        Column("Last report", _last_report, gives_way=5),
    ]


def _row_style(state: str, rank: Rank) -> str:
    if (rank.late is not None and rank.late.is_called_late) or holds_up(rank, state):
        return "bold red"
    if rank.silent:
        return "dark_orange"
    return FAINT if rank.finished else ""


# ---- Tables and bars -----------------------------------------------------------------------------


def _table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    style: Callable[[Row], str],
    console: Console,
    options: ConsoleOptions,
) -> Table:
    """Return *rows* with those of *columns* that say anything and fit into the terminal."""
    empty = {"", NOTHING}
    used = [each for each in columns if not {str(each.cell(row)) for row in rows} <= empty]
    while True:
        drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=FAINT)
        for each in used:
            drawn.add_column(
                each.title,
                justify=each.justify,
                no_wrap=not each.is_name,  # rich shortens what may wrap first.
                overflow="ellipsis",
                min_width=4 if each.is_name else None,
            )
        for row in rows:
            cells = (each.cell(row) for each in used)
            # As text: a job's name may look like rich's markup.
            plain = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
            drawn.add_row(*plain, style=style(row))
        widest = Measurement.get(console, options.update_width(10_000), drawn).maximum
        if widest <= options.max_width or not any(each.gives_way for each in used):
            return drawn
        used.remove(max(used, key=lambda each: each.gives_way))


def _bar(stage_seconds: Mapping[str, float] | None, longest: float, width: int) -> Text:
    """Draw a step; *width* characters stand for the *longest* step of the table."""
    drawn = Text(no_wrap=True)
    if not stage_seconds or longest <= 0:
        return drawn
    seconds = [max(0.0, stage_seconds.get(stage, 0.0)) for stage in STAGES]
    # Ends are rounded, not lengths, so that the errors do not add up.
    ends = [round(width * end / longest) for end in accumulate(seconds)]
    for stage, begin, end in zip(STAGES, [0, *ends], ends, strict=False):
        drawn.append(BLOCKS[stage] * (end - begin), STAGE_STYLES[stage])
    return drawn


def _legend(stages: Collection[str], coloured: bool) -> Text:
    """Explain the colours of *stages*, in step order; without colours, the two blocks."""
    if not coloured:
        return Text(f"{OWN_BLOCK} own work  {WAIT_BLOCK} waits for others")
    said = Text(style=FAINT)
    for stage in STAGES:
        if stage in stages:
            said.append(BLOCKS[stage] * 2, STAGE_STYLES[stage])
            said.append(" waits for others  " if stage == WAIT else f" {stage}  ")
    said.rstrip()
    return said
