"""The report on a job in words and tables, and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from exporter.live.states import WORDS as STATE_WORDS
from rankskew.report import losses
from rankskew.report.document import MONEY, Document, Section
from rankskew.report.incidents import NAMES
from rankskew.report.job import JobReport
from rankskew.report.losses import Loss, grouped, together
from rankskew.report.times import (
    HOUR_SECONDS,
    NOT_KNOWN,
    gpu_hours,
    iso,
    length,
    money,
    seconds,
    show,
)
from rankskew.wording import counted

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
                [each.row() for each in job.incidents],
            ),
            _exactness(job),
        ],
    )


def _summary(job: JobReport) -> Iterator[str]:
    begin, end = job.alive[0][0], job.alive[-1][1]
    when = f"running since {show(begin)}" if job.is_running else f"{show(begin)} to {show(end)}"
    gone = end - begin - seconds(job.alive)
    pause = f", {length(gone)} of it without a living rank" if gone >= 1 else ""
    yield f"{counted(job.world_size, 'rank')}, {when} UTC: {length(end - begin)}{pause}."
    if job.unseen_seconds:
        yield f"It had run for {length(job.unseen_seconds)} or more when it was first seen."
    hours, lost = job.gpu_seconds / HOUR_SECONDS, job.lost_seconds / HOUR_SECONDS
    cost = job.dollars(job.lost_seconds)
    price = "" if cost is None else f" ({money(cost)} at {money(job.price)} per GPU-hour)"
    if job.efficiency is None:
        yield f"It had {gpu_hours(hours)} GPU-hours; what it lost was never known."
    else:
        yield (
            f"Efficiency {job.efficiency:.1%}: {gpu_hours(lost)} of "
            f"{gpu_hours(job.judged_seconds / HOUR_SECONDS)} judged GPU-hours were lost{price}."
        )
    unknown = (job.gpu_seconds - job.judged_seconds) / HOUR_SECONDS
    if unknown > 0 and job.efficiency is not None:
        yield f"{gpu_hours(unknown)} more GPU-hours were not judged: a start, or missing ranks."
    restarts = len(job.restarts)
    if restarts:
        when = ", ".join(show(at) for at in job.restarts[:MOST_ROWS])
        yield f"{restarts} restart{'s' * (restarts > 1)}: {when}."


# ---- Sections ------------------------------------------------------------------------------------


def _lost(
    job: JobReport, title: str, names: Sequence[str], key: Callable[[Loss], tuple[str, ...]]
) -> Section:
    """Return a row for each *key* of the losses, the costliest first, and one for the rest."""
    if not job.losses:
        return Section(title, ["Nothing."])
    parts = list(grouped(job.losses, key).items())
    blank = ("",) * (len(names) - 1)
    shown = parts[:MOST_ROWS]
    if len(parts) > MOST_ROWS:
        shown.append(((OTHERS, *blank), sum(part for _, part in parts[MOST_ROWS:])))
    shown.append((("sum", *blank), job.lost_seconds))
    rows = [
        [
            *cells,
            gpu_hours(part / HOUR_SECONDS),
            f"{part / job.lost_seconds:.1%}",
            money(job.dollars(part)),
        ]
        for cells, part in shown
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
            show(each.begin),
            length(each.end - each.begin),
            each.scope,
            each.stage,
            f"{each.ratio:.2f}",
            gpu_hours(each.gpu_seconds / HOUR_SECONDS),
            money(job.dollars(each.gpu_seconds)),
        ]
        for each in job.slower[:MOST_ROWS]
    ]
    whole = together(job.slower)
    rows.append(["in all", *[""] * 4, gpu_hours(whole / HOUR_SECONDS), money(job.dollars(whole))])
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
    total = sum(job.states.values())
    ordered = sorted(job.states.items(), key=lambda each: -each[1])
    rows = [[STATE_WORDS.get(state, state), length(s), f"{s / total:.1%}"] for state, s in ordered]
    lines = [
        f"The rank with the most spent {share:.1%} of the time in {stage}."
        for stage, share in job.standstill.items()
    ]
    if not rows:
        return Section("Time", [*lines, "The state of the job was not recorded."])
    rows.append(["sum", length(total), "100.0%"])
    return Section("Time", lines, ["State", ">Time", ">Share"], rows)


def _exactness(job: JobReport) -> Section:
    step = length(job.times.step_seconds)
    lines = [
        f"Read every {step}: begin and end of the job, a hang or an incident are known to within "
        f"{step} each."
    ]
    if job.is_counted:
        gauge = job.gauge_seconds / HOUR_SECONDS
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


# ---- For programs --------------------------------------------------------------------------------


def job_json(job: JobReport) -> dict[str, Any]:
    """Return what is known of *job* for a program; losses add up to gpu_hours_lost."""
    begin, end = job.alive[0][0], job.alive[-1][1]
    return {
        "job_id": job.job_id,
        "cluster": job.cluster,
        "begin": iso(begin),
        "end": iso(end),
        "unseen_seconds": job.unseen_seconds,
        "is_running": job.is_running,
        "step_seconds": job.times.step_seconds,
        "alive_seconds": seconds(job.alive),
        "ranks": job.world_size,
        "gpu_hours": job.gpu_seconds / HOUR_SECONDS,
        "gpu_hours_judged": job.judged_seconds / HOUR_SECONDS,
        "gpu_hours_lost": job.lost_seconds / HOUR_SECONDS,
        "gpu_hours_lost_by_gauges": job.gauge_seconds / HOUR_SECONDS,
        "counted_by_ranks": job.is_counted,
        "efficiency": job.efficiency,
        "dollars_per_gpu_hour": job.price,
        "dollars_lost": job.dollars(job.lost_seconds),
        "losses": [
            {
                "kind": loss.kind,
                "rank": loss.rank or None,
                "stage": loss.stage or None,
                "cause": loss.cause or None,
                "gpu_hours": loss.gpu_seconds / HOUR_SECONDS,
                "dollars": job.dollars(loss.gpu_seconds),
            }
            for loss in sorted(job.losses, key=lambda loss: -loss.gpu_seconds)
        ],
        "gpu_hours_slower": together(job.slower) / HOUR_SECONDS,
        "slower": [
            {
                "scope": each.scope,
                "stage": each.stage,
                "begin": iso(each.begin),
                "end": iso(each.end),
                "seconds": each.end - each.begin,
                "ratio": each.ratio,
                "gpu_hours": each.gpu_seconds / HOUR_SECONDS,
                "dollars": job.dollars(each.gpu_seconds),
            }
            for each in job.slower
        ],
        "state_seconds": dict(job.states),
        "standstill_share": dict(job.standstill),
        "restarts": [iso(at) for at in job.restarts],
        "incidents": [each.json() for each in job.incidents],
    }
