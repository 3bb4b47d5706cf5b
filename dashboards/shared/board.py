"""What every dashboard has: its identity, links to the others, and alerts on its time lines."""

from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.shared.panels import DATASOURCE, LATE_COLOUR, RUNBOOKS_URL
from dashboards.shared.variables import datasource_variable

Panel = Builder[models.Panel]

# Every dashboard by the name of its file, from the whole to the part.
BOARDS: Final = {
    "fleet": "Fleet",
    "job": "Job",
    "rank": "Rank",
    "node": "Node and GPU",
    "self": "Rankskew itself",
}


def board(key: str, description: str, selector: str) -> dashboard.Dashboard:
    """Return an empty dashboard of BOARDS; *selector* is for the alerts on its time lines."""
    empty = (
        dashboard.Dashboard(f"Rankskew / {BOARDS[key]}")
        .uid(uid(key))
        .description(description)
        .tags(["rankskew"])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .annotation(_alerts(selector))
        .with_variable(datasource_variable())
    )
    for other in BOARDS:
        if other != key:
            empty.link(_link_to(other))
    return empty.link(_runbooks())


def filled(
    empty: dashboard.Dashboard, top: Sequence[Panel], rows: Mapping[str, Sequence[Panel]]
) -> dashboard.Dashboard:
    """Put panels at the *top* of a dashboard, and others below, in *rows* by their titles."""
    for panel in top:
        empty.with_panel(panel)
    for title, panels in rows.items():
        empty.with_row(dashboard.Row(title))
        for panel in panels:
            empty.with_panel(panel)
    return empty


def uid(key: str) -> str:
    """Return the fixed part of a dashboard's address."""
    return f"rankskew-{key}"


def firing(selector: str) -> str:
    """Return the alerts that fire."""
    return f'ALERTS{{alertname=~"Rankskew.*",alertstate="firing",{selector}}}'


def lifecycle(selector: str) -> dashboard.AnnotationQuery:
    """Return an annotation for the times in which a job starts, loses sight of ranks or ends."""
    states = 'state=~"exporter_down|ranks_missing|starting|finished"'
    return (
        _annotation("Lifecycle", f"job:rankskew_state:info{{{states},{selector}}}")
        .icon_color("#8E99A8")
        .title_format("{{job_id}}: {{state}}")
        .tag_keys("state")
    )


def restarts(selector: str) -> dashboard.AnnotationQuery:
    """Return an annotation for each time at which a job's processes were replaced."""
    restarted = f"resets(job:rankskew_run_seconds:max{{{selector}}}[2m]) > 0"
    return (
        _annotation("Restarts", restarted).icon_color("#B877D9").title_format("{{job_id}}: restart")
    )


def events(selector: str) -> dashboard.AnnotationQuery:
    """Return an annotation at each event in the life of the selected rank."""
    milliseconds = f"1000 * rankskew_rank_last_event_timestamp_seconds{{{selector}}}"
    return (
        _annotation("Events", milliseconds)
        .use_value_for_time(True)
        .icon_color("#5794F2")
        .title_format("rank {{rank}}: {{event}} {{state}}")
        .text_format("{{job_id}} {{instance}}")
        .tag_keys("event,state")
    )


def changes(selector: str) -> dashboard.AnnotationQuery:
    """Return an annotation where a job, or a peer group of it, became slower."""
    by = "cluster, job_id, scope, stage, in_common"
    since = f"rankskew_job_change_since_timestamp_seconds{{{selector}}}"
    return (
        _annotation("Changes", f"1000 * min by ({by}) ({since})")
        .use_value_for_time(True)
        .icon_color("#FF9830")
        .title_format("{{job_id}}: slower in {{stage}} ({{scope}})")
        .text_format("{{in_common}}")
        .tag_keys("stage")
    )


def _alerts(selector: str) -> dashboard.AnnotationQuery:
    return (
        _annotation("Alerts", firing(selector))
        .icon_color(LATE_COLOUR)
        .title_format("{{alertname}}")
        .text_format("{{job_id}} {{instance}} rank {{rank}} {{stage}}")
        .tag_keys("severity")
    )


def _annotation(name: str, expr: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).expr(expr)


def _link_to(key: str) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(BOARDS[key])
        .type(models.DashboardLinkType.LINK)
        .icon("dashboard")
        .url(f"/d/{uid(key)}")
        .include_vars(True)
        .keep_time(True)
    )


def _runbooks() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Runbooks")
        .type(models.DashboardLinkType.LINK)
        .icon("doc")
        .tooltip("What each alert means and what to do about it")
        .url(RUNBOOKS_URL)
        .target_blank(True)
    )
