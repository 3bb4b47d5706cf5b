"""The report on a job in words, tables and pictures, and as JSON."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

from exporter.live.states import WORDS as STATE_WORDS
from exporter.report import losses
from exporter.report.document import Document, Section, Table, columns, priced
from exporter.report.incident_rows import NAMES, incident_json, incident_row
from exporter.report.job import JobReport
from exporter.report.losses import Loss, grouped
from exporter.report.pictures import bars_picture, efficiency_picture
from exporter.report.spans import seconds
from exporter.report.times import HOUR_SECONDS, gpu_hours, iso, length, money, show

# The rest of the ranks, stages and causes are one row.
MOST_ROWS: Final = 12
OTHERS: Final = "others"
NO_RANK: Final = "no rank to blame"


def job_document(job: JobReport) -> Document:
    """Return what is known of *job*."""
    return Document(
        f"Job {job.job_id}{f' in {job.cluster}' if job.cluster else ''}",
        list(_summary(job)),
        [
            Section("Efficiency over time", _efficiency_lines(job), None, efficiency_picture(job)),
            _by_reason(job),
            _loss(job, "Lost, by rank", "Rank", lambda loss: loss.rank or NO_RANK),
            _loss(job, "Lost, by stage", "Stage", lambda loss: loss.stage or "–"),
            _details(job),
            _time(job),
            _incidents(job),
            _exactness(job),
        ],
    )


def _summary(job: JobReport) -> Iterator[str]:
    begin, end = job.alive[0][0], job.alive[-1][1]
    when = f"running since {show(begin)}" if job.is_running else f"{show(begin)} to {show(end)}"
    gone = end - begin - seconds(job.alive)
    pause = f", {length(gone)} of it without a living rank" if gone >= 1 else ""
    yield f"{job.world_size} ranks, {when} UTC: {length(end - begin)}{pause}."
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


def _efficiency_lines(job: JobReport) -> list[str]:
    if job.efficiency is None:
        return ["It was never judged."]
    return ["The share of its GPUs that did not only wait; while it hung, none counts."]


def _by_reason(job: JobReport) -> Section:
    title = "Lost, by reason"
    if not job.losses:
        return Section(title, ["Nothing."])
    parts = grouped(job.losses, _reason)
    hours = {reason: part / HOUR_SECONDS for reason, part in list(parts.items())[:MOST_ROWS]}
    return Section(title, [], _table(job, "Reason", parts), bars_picture(title, hours))


def _reason(loss: Loss) -> str:
    cause = f": {loss.cause.replace('_', ' ')}" if loss.cause else ""
    return f"{losses.WORDS[loss.kind]}{cause}"


def _loss(job: JobReport, title: str, name: str, key: Callable[[Loss], str]) -> Section:
    if not job.losses:
        return Section(title, ["Nothing."])
    return Section(title, [], _table(job, name, grouped(job.losses, key)))


def _table(job: JobReport, name: str, parts: dict[str, float]) -> Table:
    """Return a row for each of *parts*, GPU-seconds by name, the last of them for the rest."""
    total = sum(parts.values())
    shown = dict(list(parts.items())[:MOST_ROWS])
    rest = total - sum(shown.values())
    if len(parts) > MOST_ROWS:
        shown[OTHERS] = rest
    rows = [_loss_row(job, [each], s, total) for each, s in shown.items()]
    rows.append(_loss_row(job, ["sum"], total, total))
    return priced(Table(columns(name, ">GPU-hours", ">Share", ">US$"), rows, has_sum=True))


def _loss_row(job: JobReport, names: list[str], gpu_seconds: float, total: float) -> list[str]:
    share = f"{gpu_seconds / total:.1%}" if total else "–"
    return [*names, gpu_hours(gpu_seconds / HOUR_SECONDS), share, money(job.dollars(gpu_seconds))]


def _details(job: JobReport) -> Section:
    """Return the costliest single parts: one rank in one stage for one cause."""
    title = "Lost, by rank, stage and cause"
    total = job.lost_seconds
    parts = sorted(job.losses, key=lambda loss: -loss.gpu_seconds)
    if not parts:
        return Section(title, ["Nothing."])
    rows = [_loss_row(job, _names(loss), loss.gpu_seconds, total) for loss in parts[:MOST_ROWS]]
    rest = sum(loss.gpu_seconds for loss in parts[MOST_ROWS:])
    if len(parts) > MOST_ROWS:
        rows.append(_loss_row(job, [OTHERS, "", "", ""], rest, total))
    rows.append(_loss_row(job, ["sum", "", "", ""], total, total))
    names = columns("Reason", "Rank", "Stage", "Cause", ">GPU-hours", ">Share", ">US$")
    return Section(title, [], priced(Table(names, rows, has_sum=True)))


def _names(loss: Loss) -> list[str]:
    return [losses.WORDS[loss.kind], loss.rank or "–", loss.stage or "–", loss.cause or "–"]


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
    return Section("Time", lines, Table(columns("State", ">Time", ">Share"), rows, has_sum=True))


def _incidents(job: JobReport) -> Section:
    if not job.incidents:
        return Section("Incidents", ["None."])
    rows = [incident_row(each) for each in job.incidents]
    return Section("Incidents", [], priced(Table(columns(*NAMES), rows)))


def _exactness(job: JobReport) -> Section:
    step = length(job.times.step_seconds)
    lines = [
        f"Read every {step}: begin and end of the job, a hang or an incident are known to within "
        f"{step} each.",
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
                **{
                    name: text or None
                    for name, text in asdict(loss).items()
                    if name != "gpu_seconds"
                },
                "gpu_hours": loss.gpu_hours,
                "dollars": job.dollars(loss.gpu_seconds),
            }
            for loss in sorted(job.losses, key=lambda loss: -loss.gpu_seconds)
        ],
        "state_seconds": dict(job.states),
        "standstill_share": dict(job.standstill),
        "restarts": [iso(at) for at in job.restarts],
        "incidents": [incident_json(each) for each in job.incidents],
    }
