"""What every dashboard has: its identity, its choices, its annotations, and links to the others."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dashboards.detail import say_what_it_needs
from dashboards.links import RUNBOOKS_URL, uid
from dashboards.panels import DATASOURCE, RED, Panel

# Every dashboard by the name of its file, from the whole to the part.
BOARDS: Final = {
    "fleet": "Fleet",
    "job": "Job",
    "rank": "Rank",
    "node": "Node and GPU",
    "self": "Rankskew itself",
}
# Grafana 10's: newer servers migrate it when they load it, older ones cannot migrate down.
SCHEMA_VERSION: Final = 39

# What every query of a dashboard carries, by what the dashboard is about. The cluster is a label
# that an operator may or may not add; `.*` also matches series without it.
CLUSTER: Final = 'cluster=~"$cluster"'
JOB: Final = f'{CLUSTER},job_id="$job_id"'
ONE_RANK: Final = f'{JOB},rank="$rank"'
NODE: Final = f'{CLUSTER},instance=~"$instance"'


# Panels side by side.
Lines = Sequence[Sequence[Panel]]


def board(
    key: str,
    description: str,
    selector: str,
    variables: Sequence[Mapping[str, Any]],
    top: Lines,
    rows: Mapping[str, Lines],
    annotations: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a dashboard of BOARDS; *selector* is for the alerts on its time lines.

    The panels of *top* are followed by those of *rows*, by their titles. Grafana 12 drops panels
    without a number, so all have one.
    """
    shown, y = _placed(top, 0)
    for title, lines in rows.items():
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        panels, y = _placed(lines, y + 1)
        shown.append({"type": "row", "title": title, "collapsed": False, "gridPos": place})
        shown += panels
    for number, panel in enumerate(shown, start=1):
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


def _placed(lines: Lines, y: int) -> tuple[list[Panel], int]:
    """Place the panels of *lines* from *y* on; return them, and where they end."""
    for line in lines:
        x = 0
        for panel in line:
            is_last = panel is line[-1]
            width = panel["gridPos"]["w"] or (24 - x if is_last else 24 // len(line))
            panel["gridPos"] |= {"w": width, "x": x, "y": y}
            x += width
        y += max(panel["gridPos"]["h"] for panel in line)
    return [panel for line in lines for panel in line], y


# --- Choices


def variable(name: str, label: str, query: str, **more: object) -> dict[str, Any]:
    """Return the choice of one of the values of a label, as *query* finds them."""
    return {
        "datasource": DATASOURCE,
        "label": label,
        "name": name,
        "query": query,
        "refresh": 2,  # When the time range changes.
        "sort": 1,  # By the alphabet.
        "type": "query",
        **more,
    }


NUMERICAL: Final = 3
ALL: Final = {
    "allValue": ".*",
    "current": {"selected": True, "text": "All", "value": "$__all"},
    "includeAll": True,
}
DATASOURCE_VARIABLE: Final = {
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


def annotations(rank: str) -> list[dict[str, Any]]:
    """Return when a job starts, loses sight of ranks, ends or restarts, and the events of *rank*.

    That is a selector.
    """
    states = f'state=~"exporter_down|ranks_missing|starting|finished",{JOB}'
    return [
        _annotation(
            "Lifecycle",
            f"job:rankskew_state:info{{{states}}}",
            "#8E99A8",
            "{{job_id}}: {{state}}",
            tagKeys="state",
        ),
        _annotation(
            "Restarts",
            f"resets(job:rankskew_run_seconds:max{{{JOB}}}[2m]) > 0",
            "#B877D9",
            "{{job_id}}: restart",
        ),
        _annotation(
            "Events",
            f"1000 * rankskew_rank_last_event_timestamp_seconds{{{rank}}}",
            "#5794F2",
            "rank {{rank}}: {{event}} {{state}}",
            textFormat="{{job_id}} {{instance}}",
            tagKeys="event,state",
            useValueForTime=True,
        ),
    ]


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
        RED,
        "{{alertname}}",
        textFormat="{{job_id}} {{instance}} rank {{rank}} {{stage}}",
        tagKeys="severity",
    )


def _annotation(name: str, expr: str, colour: str, title: str, **more: object) -> dict[str, Any]:
    return {
        "datasource": DATASOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": colour,
        "name": name,
        "placement": "inControlsMenu",
        "titleFormat": title,
        **more,
    }


# --- Links


def _link_to(key: str, title: str) -> dict[str, Any]:
    link = {"icon": "dashboard", "title": title, "url": f"/d/{uid(key)}"}
    return RUNBOOKS | link | {"includeVars": True, "keepTime": True, "targetBlank": False}


RUNBOOKS: Final[dict[str, Any]] = {
    "icon": "doc",
    "includeVars": False,
    "keepTime": False,
    "placement": "inControlsMenu",
    "targetBlank": True,
    "title": "Runbooks",
    "tooltip": "What each alert means and what to do about it",
    "type": "link",
    "url": RUNBOOKS_URL,
}
