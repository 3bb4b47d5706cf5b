"""What every dashboard has: its identity, its choices, its annotations, and links to the others."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dashboards.detail import say_what_it_needs
from dashboards.panels import DATASOURCE, LATE_COLOUR, RUNBOOKS_URL, Panel, uid

# Every dashboard by the name of its file, from the whole to the part.
BOARDS: Final = {
    "fleet": "Fleet",
    "job": "Job",
    "rank": "Rank",
    "node": "Node and GPU",
    "self": "Rankskew itself",
}
# That of Grafana 10: newer servers migrate it when they load it, older ones cannot migrate down.
SCHEMA_VERSION: Final = 39

# What every query of a dashboard carries, by what the dashboard is about. The cluster is a label
# that an operator may or may not add; `.*` also matches series without it.
CLUSTER: Final = 'cluster=~"$cluster"'
JOB: Final = f'{CLUSTER},job_id="$job_id"'
ONE_RANK: Final = f'{JOB},rank="$rank"'
NODE: Final = f'{CLUSTER},instance=~"$instance"'


def board(
    key: str,
    description: str,
    selector: str,
    variables: Sequence[Mapping[str, Any]],
    top: Sequence[Panel],
    rows: Mapping[str, Sequence[Panel]],
    *,
    folded: Mapping[str, Sequence[Panel]] | None = None,
    annotations: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a dashboard of BOARDS; *selector* is for the alerts on its time lines.

    The panels of *top* are followed by those of *rows*, by their titles, and of *folded* rows,
    which are closed at first. Grafana 12 drops panels without a number, so all have one.
    """
    shown, y = list(top), _place(top, 0)
    for title, panels in [*rows.items(), *(folded or {}).items()]:
        closed = title in (folded or {})
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        row: Panel = {"type": "row", "title": title, "collapsed": closed, "gridPos": place}
        shown += [row | {"panels": panels if closed else []}, *(() if closed else panels)]
        y = _place(panels, y + 1)
    for number, panel in enumerate(_all(shown), start=1):
        panel["id"] = number
        say_what_it_needs(panel)
    others = [_link_to(other, title) for other, title in BOARDS.items() if other != key]
    return {
        "annotations": {"list": [_alerts(selector), *annotations]},
        "description": description,
        "editable": False,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [*others, RUNBOOKS],
        "panels": shown,
        "refresh": "10s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["rankskew"],
        "templating": {"list": [DATASOURCE_VARIABLE, CLUSTER_VARIABLE, *variables]},
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "title": f"Rankskew / {BOARDS[key]}",
        "uid": uid(key),
    }


def _place(panels: Iterable[Panel], y: int) -> int:
    """Place *panels* from *y* on, side by side as they fit in 24 columns; return where they end."""
    x = tallest = 0
    for panel in panels:
        place = panel["gridPos"]
        place |= {"x": x, "y": y}
        x, tallest = x + place["w"], max(tallest, place["h"])
        if x >= 24:
            x, y, tallest = 0, y + tallest, 0
    return y + tallest


def _all(panels: Iterable[Panel]) -> Iterable[Panel]:
    return (one for panel in panels for one in (panel, *panel.get("panels", ())))


# --- Choices


def variable(name: str, label: str, query: str, **more: object) -> dict[str, Any]:
    """Return the choice of one of the values of a label, as *query* finds them."""
    return {
        **_OF_EVERY_VARIABLE,
        "datasource": DATASOURCE,
        "label": label,
        "name": name,
        "query": query,
        "refresh": 2,  # When the time range changes.
        "sort": 1,  # By the alphabet.
        "type": "query",
        **more,
    }


_OF_EVERY_VARIABLE: Final = {
    "allowCustomValue": True,
    "auto": False,
    "auto_count": 30,
    "auto_min": "10s",
    "includeAll": False,
    "multi": False,
    "skipUrlSync": False,
}
NUMERICAL: Final = 3
ALL: Final = {
    "allValue": ".*",
    "current": {"selected": True, "text": "All", "value": "$__all"},
    "includeAll": True,
}
DATASOURCE_VARIABLE: Final = {
    **_OF_EVERY_VARIABLE,
    "label": "Data source",
    "name": "datasource",
    "query": "prometheus",
    "type": "datasource",
}
CLUSTER_VARIABLE: Final = variable(
    "cluster", "Cluster", "label_values(rankskew_node_ranks, cluster)", **ALL
)
# With or without the probe, running or not.
JOB_VARIABLE: Final = variable(
    "job_id", "Job", f"label_values(job:rankskew_state:info{{{CLUSTER}}}, job_id)"
)


# --- Annotations


def firing(selector: str) -> str:
    """Return the alerts that fire."""
    return f'ALERTS{{alertname=~"Rankskew.*",alertstate="firing",{selector}}}'


def lifecycle(selector: str) -> dict[str, Any]:
    """Return an annotation for the times in which a job starts, loses sight of ranks or ends."""
    states = 'state=~"exporter_down|ranks_missing|starting|finished"'
    return _annotation(
        "Lifecycle",
        f"job:rankskew_state:info{{{states},{selector}}}",
        "#8E99A8",
        "{{job_id}}: {{state}}",
        tagKeys="state",
    )


def restarts(selector: str) -> dict[str, Any]:
    """Return an annotation for each time at which a job's processes were replaced."""
    restarted = f"resets(job:rankskew_run_seconds:max{{{selector}}}[2m]) > 0"
    return _annotation("Restarts", restarted, "#B877D9", "{{job_id}}: restart")


def events(selector: str) -> dict[str, Any]:
    """Return an annotation at each event in the life of the selected rank."""
    return _annotation(
        "Events",
        f"1000 * rankskew_rank_last_event_timestamp_seconds{{{selector}}}",
        "#5794F2",
        "rank {{rank}}: {{event}} {{state}}",
        textFormat="{{job_id}} {{instance}}",
        tagKeys="event,state",
        useValueForTime=True,
    )


def changes(selector: str) -> dict[str, Any]:
    """Return an annotation where a job, or a peer group of it, became slower."""
    by = "cluster, job_id, scope, stage, in_common"
    since = f"rankskew_job_change_since_timestamp_seconds{{{selector}}}"
    return _annotation(
        "Changes",
        f"1000 * min by ({by}) ({since})",
        "#FF9830",
        "{{job_id}}: slower in {{stage}} ({{scope}})",
        textFormat="{{in_common}}",
        tagKeys="stage",
        useValueForTime=True,
    )


def _alerts(selector: str) -> dict[str, Any]:
    return _annotation(
        "Alerts",
        firing(selector),
        LATE_COLOUR,
        "{{alertname}}",
        textFormat="{{job_id}} {{instance}} rank {{rank}} {{stage}}",
        tagKeys="severity",
    )


def _annotation(name: str, expr: str, colour: str, title: str, **more: object) -> dict[str, Any]:
    return {
        "builtIn": 0,
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expr,
        "hide": False,
        "iconColor": colour,
        "name": name,
        "placement": "inControlsMenu",
        "titleFormat": title,
        **more,
    }


# --- Links


def _link_to(key: str, title: str) -> dict[str, Any]:
    return RUNBOOKS | {
        "icon": "dashboard",
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "title": title,
        "tooltip": "",
        "url": f"/d/{uid(key)}",
    }


RUNBOOKS: Final[dict[str, Any]] = {
    "asDropdown": False,
    "icon": "doc",
    "includeVars": False,
    "keepTime": False,
    "placement": "inControlsMenu",
    "tags": [],
    "targetBlank": True,
    "title": "Runbooks",
    "tooltip": "What each alert means and what to do about it",
    "type": "link",
    "url": RUNBOOKS_URL,
}
