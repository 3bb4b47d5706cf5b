"""The report on past weeks in words and tables, and as JSON."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from exporter.report.costs import MEASURE_OF
from exporter.report.document import Document, Section, Table, columns, priced
from exporter.report.incident_rows import NAMES, incident_json, incident_row
from exporter.report.incidents import SEVERITIES
from exporter.report.precision import Precision, precision
from exporter.report.shadow import Judged, Shadow
from exporter.report.times import DAY_SECONDS, gpu_hours, iso, length, money, show

# A terminal holds no more; --all prints the others too.
MOST_INCIDENTS: Final = 40


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
            _grouped(shadow, "By cause", "Cause", _cause),
            _limits(shadow),
        ],
    )


def _summary(shadow: Shadow) -> Iterator[str]:
    count, paging = len(shadow.judged), len(shadow.pages)
    yield (
        f"{_count(count, 'incident')}; {_count(paging, 'page')} would have been sent"
        f"{_per_week(shadow, paging)}."
    )
    lost, dollars = _sums(shadow.judged)
    share = ""
    if shadow.gpu_hours and lost is not None:
        share = f", {lost / shadow.gpu_hours:.1%} of the {gpu_hours(shadow.gpu_hours)} that ran"
    cost = "" if dollars is None else f" ({money(dollars)})"
    yield f"The incidents cost {gpu_hours(lost)} GPU-hours{cost}{share}."
    yield _precision_sentence(shadow.precision)


def _per_week(shadow: Shadow, count: int) -> str:
    rate = _rate(shadow, count)
    return "" if rate is None else f", {rate:.1f} a week"


def _rate(shadow: Shadow, count: int) -> float | None:
    """Return how many a week that is; None if less than a day was watched."""
    return count / shadow.weeks if shadow.coverage.watched_seconds >= DAY_SECONDS else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _precision_sentence(found: Precision) -> str:
    left = found.unjudged + found.unsure
    if found.interval is None:
        return f"Precision: not known, because nobody has judged an incident yet ({left} are open)."
    judged = found.confirmed + found.refuted
    low, high = found.interval
    return (
        f"Precision: {found.confirmed} of {judged} judged incidents were right, "
        f"{found.ratio:.0%} (95 % interval {low:.0%} to {high:.0%}); {found.unsure} unsure, "
        f"{found.unjudged} not judged."
    )


# ---- Sections ------------------------------------------------------------------------------------


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
    rows = [
        (show(begin), show(end), length(end - begin), why) for (begin, end), why in coverage.holes
    ]
    table = Table(columns("Not covered from", "to", ">for", "because"), rows) if rows else None
    return Section("Coverage", lines, table)


def _incidents(shadow: Shadow, show_all: bool) -> Section:
    ordered = sorted(shadow.judged, key=_weight)
    shown = ordered if show_all else ordered[:MOST_INCIDENTS]
    lines = ["None."] if not ordered else []
    if len(shown) < len(ordered):
        lines.append(f"The {len(shown)} worst of {len(ordered)}; --all prints all.")
    rows = [incident_row(each) for each in shown]
    table = priced(Table(columns(*NAMES), rows)) if shown else None
    return Section("Incidents", [*lines, *_how_to_judge(shown)], table)


def _how_to_judge(shown: Sequence[Judged]) -> Iterator[str]:
    first = next((each for each in shown if each.verdict is None), None)
    if first is not None:
        yield f"Judge them: rankskew confirm {first.incident.id} yes|no|unsure --note TEXT"


def _weight(each: Judged) -> tuple[int, float, float]:
    severity = each.incident.severity
    rank = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return rank, -(each.cost.gpu_hours or 0.0), each.incident.begin


def _grouped(shadow: Shadow, title: str, name: str, key: Callable[[Judged], str | None]) -> Section:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for each in shadow.judged:
        group = key(each)
        if group is not None:
            groups[group].append(each)
    if not groups:
        return Section(title, ["None."])
    rows = [_group_row(name, groups[name], shadow) for name in sorted(groups)]
    rows.append(_group_row("sum", [each for those in groups.values() for each in those], shadow))
    counts = ">Incidents >GPU-hours >US$ >Paging >Paging/week >Yes >No >Unsure >Open >Precision"
    return Section(title, (), priced(Table(columns(name, *counts.split()), rows, has_sum=True)))


def _group_row(name: str, those: Sequence[Judged], shadow: Shadow) -> list[str]:
    found = precision(each.verdict for each in those)
    lost, dollars = _sums(those)
    paging = sum(each.pages and each.incident.begin >= shadow.times.begin for each in those)
    counts = (found.confirmed, found.refuted, found.unsure, found.unjudged)
    return [
        name,
        str(len(those)),
        gpu_hours(lost),
        money(dollars),
        str(paging),
        "–" if (rate := _rate(shadow, paging)) is None else f"{rate:.1f}",
        *map(str, counts),
        _range(found),
    ]


def _range(found: Precision) -> str:
    if found.interval is None:
        return "–"
    return f"{found.ratio:.0%} ({found.interval[0]:.0%} to {found.interval[1]:.0%})"


def _cause(each: Judged) -> str | None:
    """Return the cause of an incident whose alert has one."""
    return each.incident.mostly("cause")


def _sums(those: Iterable[Judged]) -> tuple[float | None, float | None]:
    costs = [each.cost for each in those]
    hours = [cost.gpu_hours for cost in costs if cost.gpu_hours is not None]
    dollars = [cost.dollars for cost in costs if cost.dollars is not None]
    return (sum(hours) if hours else None), (sum(dollars) if dollars else None)


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
    lost, dollars = _sums(shadow.judged)
    found = shadow.precision
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
        "pages_per_week": _rate(shadow, len(shadow.pages)),
        "precision": {
            "ratio": found.ratio,
            "interval": found.interval,
            "confirmed": found.confirmed,
            "refuted": found.refuted,
            "unsure": found.unsure,
            "unjudged": found.unjudged,
        },
        "broken_lines": list(shadow.broken_lines),
        "incidents": [incident_json(each) for each in shadow.judged],
    }
