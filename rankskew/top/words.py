"""The words, figures and colours of a cell."""

from typing import Final

from exporter.live import states
from exporter.live.sentences import is_slower
from exporter.live.wording import duration
from exporter.vocabulary import words
from rankskew.top.model import STATE_WORDS, UNKNOWN, JobStatus, Rank

NOTHING: Final = "–"

STATE_STYLES: Final = {
    name: words.COLOURS[state.colour].terminal for name, state in words.STATES.items()
} | {UNKNOWN: words.COLOURS["grey"].terminal}
# There is nothing that they could lose.
ENDED: Final = (states.FINISHED, states.NO_PROBE)
STAGE_STYLES: Final = {name: stage.colour for name, stage in words.STAGES.items()}


def state(job: JobStatus) -> str:
    """Return the state of *job* as people call it."""
    return STATE_WORDS[job.state]


def lost(job: JobStatus) -> str:
    """Return how many of its GPUs *job* loses: 1.9 of 8."""
    if job.gpus_lost is None or job.state in ENDED:
        return NOTHING if job.world_size is None else f"{NOTHING} of {job.world_size}"
    return f"{few(job.gpus_lost)} of {job.world_size or UNKNOWN}"


def few(count: float) -> str:
    """Return a count of GPUs, which need not be whole: 0.97, 1.9, 12."""
    if count < 0.005:
        return "0"
    return f"{count:.2f}" if count < 0.995 else f"{count:.1f}".removesuffix(".0")


def cost(job: JobStatus) -> str:
    """Return what that costs in an hour."""
    return NOTHING if job.cost_per_hour is None else f"${job.cost_per_hour:,.2f}"


def culprit(job: JobStatus) -> str:
    """Return the rank to look at and its stage, and how many more ranks are late."""
    if job.culprit is None:
        return NOTHING
    rank, stage = job.culprit
    others = sum(late.is_called_late and late.rank != rank for late in job.late)
    return f"{rank} · {stage}" + (f" +{others}" if others else "")


def slowdown(job: JobStatus) -> str:
    """Return how many times longer steps take than without the late ranks."""
    return f"{job.slowdown:.2f}x" if is_slower(job.slowdown) else NOTHING


def judged(job: JobStatus) -> str:
    """Return the share of the job that is judged, or why it is not."""
    if job.reason is not None:
        return job.reason.replace("_", " ")
    return NOTHING if job.coverage is None else f"{job.coverage:.0%}"


def count(number: float | None) -> str:
    """Return a whole number, with commas."""
    return NOTHING if number is None else f"{number:,.0f}"


def span(seconds: float | None) -> str:
    """Return a time of any length, with milliseconds for those of a step."""
    if seconds is None:
        return NOTHING
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 10 else duration(seconds)


def late_in(rank: Rank) -> str:
    """Return the stage in which *rank* is late, and by how much."""
    if rank.late is None:
        return ""
    mark = words.late_mark(rank.late.kind)
    return f"{rank.late.stage} +{rank.late.ratio:.0%}" + (f" ({mark})" if mark else "")


def rank_lost(rank: Rank) -> str:
    """Return how many GPUs wait for *rank*."""
    return f"{rank.late.gpus_lost:.2f}" if rank.late else ""


def now_in(rank: Rank) -> str:
    """Return what *rank* does now, and for how long if that is remarkable."""
    if rank.finished:
        return "finished"
    if rank.silent:
        return "silent"
    elapsed = rank.stage_elapsed_seconds
    told = f" {duration(elapsed)}" if elapsed is not None and elapsed >= 2 else ""
    return (rank.stage or NOTHING) + told


def last_report(rank: Rank) -> str:
    """Return how long ago *rank* reported."""
    age = rank.report_age_seconds
    if age is None or rank.finished:
        return NOTHING
    return "now" if age < 2 else f"{duration(age)} ago"
