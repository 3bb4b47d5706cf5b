"""The alerts of past weeks as they would have been, what they cost and what people said of them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rankskew.client.prometheus import Prometheus, selector
from rankskew.report.confirmations import Confirmations, Precision, precision
from rankskew.report.costs import MEASURE_OF
from rankskew.report.coverage import PeriodCoverage, Rules, read_coverage, read_rules
from rankskew.report.document import MONEY, Document, Section
from rankskew.report.history import Grid, PastSeries, grid
from rankskew.report.incidents import SEVERITIES
from rankskew.report.paging import PagerMessage, pages
from rankskew.report.reported import NAMES, ReportedIncident, read_incidents
from rankskew.report.times import (
    DAY_SECONDS,
    HOUR_SECONDS,
    NOT_KNOWN,
    Span,
    gpu_hours,
    iso,
    length,
    money,
    show,
)
from rankskew.wording import counted

# GPUs come and go slowly: so many looks are enough.
WATCHED_POINTS: Final = 2_000
# A terminal holds no more; --all prints the others too.
MOST_INCIDENTS: Final = 40
COUNTS: Final = (
    *(">Incidents", ">GPU-hours", MONEY, ">Paging", ">Paging/week"),
    *(">Yes", ">No", ">Unsure", ">Open", ">Precision"),
)


@dataclass(frozen=True, slots=True)
class Shadow:
    """All that is known of a period, read at *times*; *gpu_hours* are those of the jobs then.

    *incidents* are in the order in which they began; *pages* began in the period.
    """

    times: Grid
    rules: Rules
    coverage: PeriodCoverage
    incidents: Sequence[ReportedIncident]
    pages: Sequence[PagerMessage]
    gpu_hours: float | None
    broken_lines: Sequence[int]

    def per_week(self, count: int) -> float | None:
        """Return how many a week that is; None if less than a day was watched."""
        watched = self.coverage.watched_seconds
        return count / (watched / (7 * DAY_SECONDS)) if watched >= DAY_SECONDS else None


def read_shadow(
    prometheus: Prometheus,
    span: Span,
    said: Confirmations,
    gap_seconds: float,
    cluster: str | None = None,
) -> Shadow:
    """Return what would have been sent during *span*; breaks up to *gap_seconds* are bridged.

    Raises Trouble if *prometheus* cannot tell.
    """
    history, rules = PastSeries(prometheus), read_rules(prometheus)
    times = grid(*span, rules.interval_seconds)
    coverage = read_coverage(history, times)
    where = selector(cluster=cluster)
    found = read_incidents(history, times, where, said, gap_seconds)
    told = [firing for each in found for firing in each.sent]
    inside = [page for page in pages(told, gap_seconds) if page.span[0] >= times.begin]
    watched = _watched(history, times, where)
    return Shadow(times, rules, coverage, found, inside, watched, said.broken)


def _watched(history: PastSeries, times: Grid, where: str) -> float | None:
    """Return the GPU-hours of all jobs with a living rank."""
    least = (times.end - times.begin) / WATCHED_POINTS
    coarse = grid(times.begin, times.end, times.step_seconds, least)
    running = f"job:rankskew_world_size:max{{{where}}} and job:rankskew_ranks_beating:sum > 0"
    found = history.read(f"sum({running})", coarse)
    values = [value for each in found for _, value in each.points]
    return sum(values) * coarse.step_seconds / HOUR_SECONDS if values else None


# ---- In words ------------------------------------------------------------------------------------


def shadow_document(shadow: Shadow, show_all: bool) -> Document:
    """Return what *shadow* says, with every incident or only the most important ones."""
    begin, end = shadow.coverage.asked
    return Document(
        f"Shadow report, {show(begin)} to {show(end)} UTC",
        list(_summary(shadow)),
        [
            _covered(shadow),
            _incidents(shadow, show_all),
            _grouped(shadow, "By alert", "Alert", lambda each: each.incident.alert),
            _grouped(shadow, "By cause", "Cause", lambda each: each.incident.mostly("cause")),
            _limits(shadow),
        ],
    )


def _summary(shadow: Shadow) -> Iterator[str]:
    rate = shadow.per_week(len(shadow.pages))
    yield (
        f"{counted(len(shadow.incidents), 'incident')}; {counted(len(shadow.pages), 'page')} would "
        f"have been sent{'' if rate is None else f', {rate:.1f} a week'}."
    )
    lost, dollars = _sums(shadow.incidents)
    share = ""
    if shadow.gpu_hours and lost is not None:
        share = f", {lost / shadow.gpu_hours:.1%} of the {gpu_hours(shadow.gpu_hours)} that ran"
    cost = "" if dollars is None else f" ({money(dollars)})"
    yield f"The incidents cost {gpu_hours(lost)} GPU-hours{cost}{share}."
    found = _precision(shadow.incidents)
    if found.interval is None:
        yield (
            "Precision: not known, because nobody has judged an incident yet "
            f"({found.unjudged + found.unsure} are open)."
        )
    else:
        low, high = found.interval
        yield (
            f"Precision: {found.confirmed} of {found.confirmed + found.refuted} judged incidents "
            f"were right, {found.ratio:.0%} (95 % interval {low:.0%} to {high:.0%}); "
            f"{found.unsure} unsure, {found.unjudged} not judged."
        )


def _precision(those: Sequence[ReportedIncident]) -> Precision:
    return precision(each.verdict for each in those)


def _sums(those: Sequence[ReportedIncident]) -> tuple[float | None, float | None]:
    """Return the GPU-hours and US$ of *those*, None if none of them is known."""
    hours = [each.gpu_hours for each in those if each.gpu_hours is not None]
    dollars = [each.dollars for each in those if each.dollars is not None]
    return (sum(hours) if hours else None), (sum(dollars) if dollars else None)


def _covered(shadow: Shadow) -> Section:
    coverage, rules = shadow.coverage, shadow.rules
    watched, asked = length(coverage.watched_seconds), length(coverage.asked_seconds)
    step = length(shadow.times.step_seconds)
    lines = [f"Alerts could fire for {watched} of {asked}."]
    if shadow.times.step_seconds > rules.interval_seconds:
        lines.append(
            f"Read every {step}, because every {length(rules.interval_seconds)} would take too "
            "many queries: an alert that fires for less may be missing."
        )
    elif rules.is_known:
        lines.append(f"Read every {step}, as often as the rules are evaluated.")
    else:
        lines.append(f"Read every {step}; how often the rules are evaluated is not known.")
    if rules.missing and rules.loaded:
        lines.append(f"Not loaded now: {', '.join(rules.missing)}.")
    if rules.loaded is not None and not rules.loaded:
        lines.append("None of the alerts is loaded now; rankskew files DIR writes them.")
    names = ("Not covered from", "to", ">for", "because")
    rows = [
        (show(begin), show(end), length(end - begin), why) for (begin, end), why in coverage.holes
    ]
    return Section("Coverage", lines, names, rows)


def _incidents(shadow: Shadow, show_all: bool) -> Section:
    ordered = sorted(shadow.incidents, key=_weight)
    shown = ordered if show_all else ordered[:MOST_INCIDENTS]
    lines = ["None."] if not ordered else []
    if len(shown) < len(ordered):
        lines.append(f"The {len(shown)} worst of {len(ordered)}; --all prints all.")
    unjudged = [each.incident.id for each in shown if each.verdict is None]
    if unjudged:
        lines.append(f"Judge them: rankskew confirm {unjudged[0]} yes|no|unsure --note TEXT")
    return Section("Incidents", lines, NAMES, [each.row() for each in shown])


def _weight(each: ReportedIncident) -> tuple[int, float, float]:
    severity = each.incident.severity
    rank = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return rank, -(each.gpu_hours or 0.0), each.incident.begin


def _grouped(
    shadow: Shadow, title: str, name: str, key: Callable[[ReportedIncident], str | None]
) -> Section:
    groups: dict[str, list[ReportedIncident]] = defaultdict(list)
    for each in shadow.incidents:
        group = key(each)
        if group is not None:
            groups[group].append(each)
    if not groups:
        return Section(title, ["None."])
    rows = [_group_row(group, groups[group], shadow) for group in sorted(groups)]
    rows.append(_group_row("sum", [each for those in groups.values() for each in those], shadow))
    return Section(title, (), (name, *COUNTS), rows)


def _group_row(name: str, those: Sequence[ReportedIncident], shadow: Shadow) -> list[str]:
    found = _precision(those)
    lost, dollars = _sums(those)
    paging = sum(each.pages and each.incident.begin >= shadow.times.begin for each in those)
    rate = shadow.per_week(paging)
    right = NOT_KNOWN
    if found.interval is not None:
        right = f"{found.ratio:.0%} ({found.interval[0]:.0%} to {found.interval[1]:.0%})"
    return [
        name,
        str(len(those)),
        gpu_hours(lost),
        money(dollars),
        str(paging),
        NOT_KNOWN if rate is None else f"{rate:.1f}",
        *map(str, (found.confirmed, found.refuted, found.unsure, found.unjudged)),
        right,
    ]


def _limits(shadow: Shadow) -> Section:
    step = length(shadow.times.step_seconds)
    measured = ", ".join(sorted(each.removeprefix("Rankskew") for each in MEASURE_OF))
    lines = [
        f"Begin and end of an incident are known to within {step} each; a cost to within twice "
        f"{step} of the GPUs lost.",
        f"A cost is known for {measured}; other alerts report what costs nothing yet, or what "
        "makes a rank late, which has an alert of its own.",
        "A page is one message for all alerts of a job at a time, without those that "
        "alertmanager.yaml holds back because another alert explains them; so there may be fewer "
        "pages than paging incidents. What had begun before is not counted as either.",
    ]
    if shadow.broken_lines:
        numbers = ", ".join(map(str, shadow.broken_lines))
        lines.append(f"Confirmations that cannot be read are left out: line {numbers}.")
    return Section("How exact this is", lines)


# ---- For programs --------------------------------------------------------------------------------


def shadow_json(shadow: Shadow) -> dict[str, Any]:
    """Return *shadow* for a program; GPU-hours and US$ that are not known are None."""
    lost, dollars = _sums(shadow.incidents)
    found = _precision(shadow.incidents)
    begin, end = shadow.coverage.asked
    return {
        "begin": iso(begin),
        "end": iso(end),
        "step_seconds": shadow.times.step_seconds,
        "interval_seconds": shadow.rules.interval_seconds if shadow.rules.is_known else None,
        "not_loaded": shadow.rules.missing,
        "watched_seconds": shadow.coverage.watched_seconds,
        "not_covered": [
            {"begin": iso(a), "end": iso(b), "because": why}
            for (a, b), why in shadow.coverage.holes
        ],
        "gpu_hours_watched": shadow.gpu_hours,
        "gpu_hours_lost": lost,
        "dollars_lost": dollars,
        "pages": [
            {
                "cluster": page.cluster,
                "job_id": page.job_id,
                "begin": iso(page.span[0]),
                "end": iso(page.span[1]),
                "severity": page.severity,
            }
            for page in shadow.pages
        ],
        "pages_per_week": shadow.per_week(len(shadow.pages)),
        "precision": {"ratio": found.ratio, "interval": found.interval} | asdict(found),
        "broken_lines": list(shadow.broken_lines),
        "incidents": [each.json() for each in shadow.incidents],
    }
