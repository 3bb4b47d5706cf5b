"""`rankskew report`: look back over weeks of alerts, or over a job."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Final

from exporter.commands.arguments import Parser, add_duration
from exporter.errors import StartError
from exporter.live.states import WORDS as STATE_WORDS
from exporter.vocabulary.words import KINDS
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import selector
from rankskew.commands.servers import add_access, add_moment, add_prometheus, prometheus
from rankskew.render import MONEY, Document, Section, render
from rankskew.report.history import TIMEOUT_SECONDS, Grid, grid
from rankskew.report.incidents import SEVERITIES, Incident, IncidentsReport, read_all_incidents
from rankskew.report.job import JobReport, Loss, read_job
from rankskew.times import iso, length, to_minute
from rankskew.wording import NOT_KNOWN, counted, gpu_hours, money

EXAMPLES: Final = """\
rankskew report --incidents --since 14d                # what fired, and what it cost
rankskew report --job llama --prometheus http://prometheus:9090
rankskew report --job llama --json | jq .gpu_hours_lost"""
# Names of the cells of an incident as a row; those that begin with > are numbers.
NAMES: Final = (
    *("Since", "Severity", "Alert", "Job", "Who", "Stage", "Cause"),
    *(">Lasted", ">GPU-hours", MONEY),
)
# Further ranks, stages and causes share one row.
MOST_ROWS: Final = 12
OTHERS: Final = "others"
# What a loss has in each column, and the columns of each table of losses.
CELLS: Final[Mapping[str, Callable[[Loss], str | None]]] = {
    "Reason": lambda loss: KINDS[loss.kind].name,
    "Rank": lambda loss: loss.rank,
    "Stage": lambda loss: loss.stage,
    "Cause": lambda loss: loss.cause,
}
TABLES: Final[Mapping[str, Sequence[str]]] = {
    "Lost, by reason": ("Reason", "Cause"),
    "Lost, by rank": ("Rank",),
    "Lost, by stage": ("Stage",),
    "Lost, by rank, stage and cause": tuple(CELLS),
}
EXACTNESS: Final = (
    "Losses are means of a minute that the rules record, summed every {0}. Begin and end of the "
    "job, a hang or an incident are known to within {0} each. A restart is seen if all processes "
    "are new."
)


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew report",
        description="Look back: over the alerts of some weeks, with what they cost (--incidents), "
        "or over one job, with what it lost (--job).",
        examples=EXAMPLES,
    )
    subject = options.add_mutually_exclusive_group(required=True)
    subject.add_argument("--incidents", action="store_true", help="what fired in the period")
    subject.add_argument("--job", metavar="JOB_ID", help="this job, running or finished")
    add_prometheus(options)
    add_duration(options, "--since", "14d", "how far to look back")
    add_moment(options)
    form = options.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    form.add_argument("--json", action="store_true", help="print one JSON document: docs/report.md")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a report; raises StartError with a sentence if Prometheus cannot tell."""
    options = parser().parse_args(arguments)
    server = prometheus(options, TIMEOUT_SECONDS)
    end = time.time() if options.at is None else options.at
    span = max(0.0, end - options.since), end
    try:
        if options.incidents:
            times = grid(*span)
            fired = read_all_incidents(server, times, selector(cluster=options.cluster))
            document = _incidents_document(fired, times)
            said = as_document("report-incidents", asdict(fired))
        else:
            job = read_job(server, options.job, options.cluster, span)
            document, said = _job_document(job), as_document("report-job", asdict(job))
    except Trouble as trouble:
        raise StartError(str(trouble)) from trouble
    print(said if options.json else render(document, markdown=options.markdown))
    return 0


# ---- Incidents in words ------------------------------------------------------------------------


def _incidents_section(those: Sequence[Incident]) -> Section:
    rows = [
        [
            to_minute(each.begin),
            each.severity,
            each.alert.removeprefix("Rankskew"),
            each.who.get("job_id", NOT_KNOWN),
            each.place,
            each.stage or NOT_KNOWN,
            each.cause or NOT_KNOWN,
            length(each.seconds),
            gpu_hours(each.gpu_hours),
            money(each.dollars),
        ]
        for each in those
    ]
    return Section("Incidents", [] if rows else ["None."], NAMES, rows)


def _incidents_document(found: IncidentsReport, times: Grid) -> Document:
    """Return what was found at *times* in words, the worst first."""
    ordered = sorted(
        found.incidents,
        key=lambda each: (SEVERITIES.get(each.severity, 3), -(each.gpu_hours or 0)),
    )
    cost = "" if found.dollars_lost is None else f" ({money(found.dollars_lost)})"
    end = times.end + times.step_seconds
    return Document(
        f"Incidents, {to_minute(iso(times.begin))} to {to_minute(iso(end))} UTC",
        [
            f"{counted(len(ordered), 'incident')}; they cost {gpu_hours(found.gpu_hours_lost)} "
            f"GPU-hours{cost}.",
            f"Alerts could fire for {length(found.watched_seconds)} of "
            f"{length(end - times.begin)}.",
        ],
        [
            _incidents_section(ordered),
            Section(
                "How exact this is",
                [
                    f"Read every {length(times.step_seconds)}: an alert that fires for less may be "
                    "missing. A GPU that waits while two alerts of a job fire is counted by both."
                ],
            ),
        ],
    )


# ---- A job in words ----------------------------------------------------------------------------


def _job_document(job: JobReport) -> Document:
    """Return what is known of *job*."""
    return Document(
        f"Job {job.job_id}{f' in {job.cluster}' if job.cluster else ''}",
        list(_summary(job)),
        [
            *(_lost(job, title, columns) for title, columns in TABLES.items()),
            _time(job),
            _incidents_section(job.incidents),
            Section("How exact this is", [EXACTNESS.format(length(job.step_seconds))]),
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


def _lost(job: JobReport, title: str, columns: Sequence[str]) -> Section:
    """Return a row for all losses with the same cells, the costliest first; the rest is one."""
    if not job.losses:
        return Section(title, ["Nothing."])
    parts: dict[tuple[str, ...], float] = defaultdict(float)
    for loss in job.losses:
        parts[tuple(CELLS[column](loss) or NOT_KNOWN for column in columns)] += loss.gpu_hours
    shown = sorted(parts.items(), key=lambda each: -each[1])
    blank = ("",) * (len(columns) - 1)
    if len(shown) > MOST_ROWS:
        rest = sum(hours for _, hours in shown[MOST_ROWS:])
        shown = [*shown[:MOST_ROWS], ((OTHERS, *blank), rest)]
    shown.append((("sum", *blank), job.gpu_hours_lost))
    rows = [
        [*cells, gpu_hours(hours), f"{hours / job.gpu_hours_lost:.1%}", money(job.dollars(hours))]
        for cells, hours in shown
    ]
    return Section(title, [], [*columns, ">GPU-hours", ">Share", MONEY], rows)


def _time(job: JobReport) -> Section:
    total = sum(job.state_seconds.values())
    ordered = sorted(job.state_seconds.items(), key=lambda each: -each[1])
    rows = [[STATE_WORDS.get(state, state), length(s), f"{s / total:.1%}"] for state, s in ordered]
    if not rows:
        return Section("Time", ["The state of the job was not recorded."])
    rows.append(["sum", length(total), "100.0%"])
    return Section("Time", [], ["State", ">Time", ">Share"], rows)
