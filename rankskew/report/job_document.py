"""The report on a job in words and tables."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from exporter.live.states import WORDS as STATE_WORDS
from rankskew.render import MONEY, Document, Section
from rankskew.report import losses
from rankskew.report.incidents import NAMES, incident_rows
from rankskew.report.job import JobReport
from rankskew.report.losses import Loss
from rankskew.times import length, to_minute
from rankskew.wording import NOT_KNOWN, counted, gpu_hours, money

# The rest of the ranks, stages and causes are one row.
MOST_ROWS: Final = 12
OTHERS: Final = "others"
NO_RANK: Final = "no rank to blame"


def job_document(job: JobReport) -> Document:
    """Return what is known of *job*."""
    details = "Reason", "Rank", "Stage", "Cause"
    return Document(
        f"Job {job.job_id}{f' in {job.cluster}' if job.cluster else ''}",
        list(_summary(job)),
        [
            _lost(job, "Lost, by reason", ["Reason"], lambda loss: (_reason(loss),)),
            _lost(job, "Lost, by rank", ["Rank"], lambda loss: (loss.rank or NO_RANK,)),
            _lost(job, "Lost, by stage", ["Stage"], lambda loss: (loss.stage or NOT_KNOWN,)),
            _lost(job, "Lost, by rank, stage and cause", details, _details),
            _slower(job),
            _time(job),
            Section(
                "Incidents",
                [] if job.incidents else ["None."],
                NAMES,
                incident_rows(job.incidents),
            ),
            _exactness(job),
        ],
    )


def _summary(job: JobReport) -> Iterator[str]:
    begin, end = to_minute(job.begin), to_minute(job.end)
    when = f"running since {begin}" if job.is_running else f"{begin} to {end}"
    whole = (datetime.fromisoformat(job.end) - datetime.fromisoformat(job.begin)).total_seconds()
    gone = whole - job.alive_seconds
    pause = f", {length(gone)} of it without a living rank" if gone >= 1 else ""
    yield f"{counted(job.ranks, 'rank')}, {when} UTC: {length(whole)}{pause}."
    if job.unseen_seconds:
        yield f"It had run for {length(job.unseen_seconds)} or more when it was first seen."
    cost = f" ({money(job.dollars_lost)} at {money(job.dollars_per_gpu_hour)} per GPU-hour)"
    if job.efficiency is None:
        yield f"It had {gpu_hours(job.gpu_hours)} GPU-hours; what it lost was never known."
    else:
        yield (
            f"Efficiency {job.efficiency:.1%}: {gpu_hours(job.gpu_hours_lost)} of "
            f"{gpu_hours(job.gpu_hours_judged)} judged GPU-hours were lost"
            f"{'' if job.dollars_lost is None else cost}."
        )
    unknown = job.gpu_hours - job.gpu_hours_judged
    if unknown > 0 and job.efficiency is not None:
        yield f"{gpu_hours(unknown)} more GPU-hours were not judged: a start, or missing ranks."
    if job.restarts:
        when = ", ".join(map(to_minute, job.restarts[:MOST_ROWS]))
        yield f"{counted(len(job.restarts), 'restart')}: {when}."


# ---- Sections ------------------------------------------------------------------------------------


def _lost(
    job: JobReport, title: str, names: Sequence[str], key: Callable[[Loss], tuple[str, ...]]
) -> Section:
    """Return a row for each *key* of the losses, the costliest first, and one for the rest."""
    if not job.losses:
        return Section(title, ["Nothing."])
    parts: dict[tuple[str, ...], float] = defaultdict(float)
    for loss in job.losses:
        parts[key(loss)] += loss.gpu_hours
    shown = sorted(parts.items(), key=lambda each: -each[1])
    blank = ("",) * (len(names) - 1)
    if len(shown) > MOST_ROWS:
        rest = sum(hours for _, hours in shown[MOST_ROWS:])
        shown = [*shown[:MOST_ROWS], ((OTHERS, *blank), rest)]
    shown.append((("sum", *blank), job.gpu_hours_lost))
    rows = [
        [*cells, gpu_hours(hours), f"{hours / job.gpu_hours_lost:.1%}", money(job.dollars(hours))]
        for cells, hours in shown
    ]
    return Section(title, [], [*names, ">GPU-hours", ">Share", MONEY], rows)


def _reason(loss: Loss) -> str:
    cause = f": {loss.cause.replace('_', ' ')}" if loss.cause else ""
    return f"{losses.WORDS[loss.kind]}{cause}"


def _details(loss: Loss) -> tuple[str, ...]:
    parts = (loss.rank, loss.stage, loss.cause)
    return losses.WORDS[loss.kind], *(part or NOT_KNOWN for part in parts)


def _slower(job: JobReport) -> Section:
    """Return a row for each time in which the whole job was slower, and one for all of them."""
    title = "Slower than before"
    if not job.slower:
        return Section(title, ["Never, as far as the judge of the job could tell."])
    rows = [
        [
            to_minute(each.begin),
            length(each.seconds),
            each.scope,
            each.stage,
            f"{each.ratio:.2f}",
            gpu_hours(each.gpu_hours),
            money(each.dollars),
        ]
        for each in job.slower[:MOST_ROWS]
    ]
    whole = job.gpu_hours_slower
    rows.append(["in all", *[""] * 4, gpu_hours(whole), money(job.dollars(whole))])
    often = counted(len(job.slower), "time")
    lines = [
        f"The job became slower {often}, without a late rank. What that cost is counted against "
        "the pace before, and no part of the loss above, where GPUs wait; only in sync they do "
        "both.",
    ]
    if len(job.slower) > MOST_ROWS:
        lines.append(f"The first {MOST_ROWS} of {len(job.slower)}; --json has all.")
    names = ("Since", ">Lasted", "Ranks", "Stage", ">Times as long", ">GPU-hours", MONEY)
    return Section(title, lines, names, rows)


def _time(job: JobReport) -> Section:
    total = sum(job.state_seconds.values())
    ordered = sorted(job.state_seconds.items(), key=lambda each: -each[1])
    rows = [[STATE_WORDS.get(state, state), length(s), f"{s / total:.1%}"] for state, s in ordered]
    lines = [
        f"The rank with the most spent {share:.1%} of the time in {stage}."
        for stage, share in job.standstill_share.items()
    ]
    if not rows:
        return Section("Time", [*lines, "The state of the job was not recorded."])
    rows.append(["sum", length(total), "100.0%"])
    return Section("Time", lines, ["State", ">Time", ">Share"], rows)


def _exactness(job: JobReport) -> Section:
    step = length(job.step_seconds)
    lines = [
        f"Read every {step}: begin and end of the job, a hang or an incident are known to within "
        f"{step} each."
    ]
    if job.counted_by_ranks:
        gauge = job.gpu_hours_lost_by_gauges
        lines += [
            "Losses to late ranks are counted by the ranks themselves, step by step "
            "(rankskew_wait_caused_seconds_total); of each process, at most what it counted in its "
            f"last {step} is missing. Their causes are split as the rules named them meanwhile.",
            "Losses to hangs, heavier peer groups and communication are means of a minute, summed "
            f"every {step}. By such means alone the whole loss is {gpu_hours(gauge)} GPU-hours.",
        ]
    else:
        lines.append(
            f"Losses are means of a minute that the rules record, summed every {step}; the "
            "counters of the ranks are not there, or the job is too large to read them."
        )
    lines.append("A restart is seen if all processes are new.")
    return Section("How exact this is", lines)
