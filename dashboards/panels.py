"""Panels as Grafana reads them: their few shapes, and how queries, series and columns look.

Late is red and waiting is blue in every panel; a stage has one colour, as on the live page.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Final

from exporter.vocabulary import words

Panel = dict[str, Any]
# What a series or a column has of its own: Grafana's overrides, by their ids.
Look = dict[str, Any]
# A query, the name of its series, and how they differ from others of the panel.
Line = tuple[str, str, *tuple[Look, ...]]
# The word and the colour of each value of a lane; values are numbers, from 1 on.
Values = Sequence[tuple[str, str]]

RUNBOOKS_URL: Final = "https://github.com/rankskew/rankskew/blob/main/alerts/runbooks"
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

LATE_COLOUR: Final = words.COLOURS["red"].dashboard
WAIT_COLOUR: Final = words.COLOURS["blue"].dashboard
PEERS_COLOUR: Final = words.COLOURS["grey"].dashboard
ORANGE: Final = words.COLOURS["orange"].dashboard
GREEN: Final = words.COLOURS["green"].dashboard
STAGE_COLOURS: Final = {name: stage.colour.upper() for name, stage in words.STAGES.items()}
# Most urgent first, as job:rankskew_state:info names them: the word for people, and its colour.
STATES: Final = {
    name: (state.word, words.COLOURS[state.colour].dashboard)
    for name, state in words.STATES.items()
}
SEVERITIES: Final = {
    "critical": ("Critical", LATE_COLOUR),
    "warning": ("Warning", ORANGE),
    "info": ("Info", WAIT_COLOUR),
}

# Points of a panel that reads every rank or GPU of a job at each of them.
POINTS_OF_ALL: Final = 60

# The labels that tell rows apart: two clusters behind one data source may have jobs of one name.
JOB_KEY: Final = ("cluster", "job_id")
NODE_KEY: Final = ("cluster", "instance")
RANK_KEY: Final = ("cluster", "job_id", "rank")


# --- Shapes


def stat(
    title: str,
    text: str,
    unit: str,
    span: int,
    *figures: Line,
    empty: str | None = None,
    size: int = 28,
    title_size: int = 12,
    height: int = 4,
    mode: str = "value_and_name",
    orientation: str = "auto",
    limits: Sequence[tuple[str, float | None]] = (("text", None),),
    by_name: Mapping[str, Look] | None = None,
    **defaults: int,
) -> Panel:
    """Return a big figure per series, each with its name, *size* pixels high.

    A colour of *limits* holds from its value on, the first from below all.
    """
    panel = _panel("stat", title, text, unit, span, height, empty, defaults)
    panel["fieldConfig"]["defaults"]["thresholds"] = _thresholds(limits)
    panel["options"] = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "center",
        "orientation": orientation,
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "showPercentChange": False,
        "text": {"titleSize": title_size, "valueSize": size},
        "textMode": mode,
        "wideLayout": True,
    }
    return _ask(panel, figures, instant=True, by_name=by_name)


def sentence(
    title: str,
    text: str,
    span: int,
    size: int,
    *figures: Line,
    limits: Sequence[tuple[str, float | None]] = (("text", None),),
    by_name: Mapping[str, Look] | None = None,
) -> Panel:
    """Return the names of series instead of their values, one below the other.

    Grafana shows nothing for no series then, so there should always be one.
    """
    return stat(
        title,
        text,
        "none",
        span,
        *figures,
        size=size,
        mode="name",
        orientation="horizontal",
        limits=limits,
        by_name=by_name,
    )


def timeseries(
    title: str,
    text: str,
    unit: str,
    span: int,
    *lines: Line,
    empty: str | None = None,
    height: int = 8,
    points: int | None = None,
    stack: Mapping[str, str] | None = None,
    by_name: Mapping[str, Look] | None = None,
    by_pattern: Mapping[str, Look] | None = None,
    custom: Mapping[str, Any] | None = None,
    **defaults: int,
) -> Panel:
    """Return thin lines over time with a legend below, zero included.

    With *stack* they are areas that add up, in its colours for series that match its patterns.
    """
    panel = _panel("timeseries", title, text, unit, span, height, empty, {"min": 0, **defaults})
    panel["fieldConfig"]["defaults"]["custom"] = {
        "fillOpacity": 0 if stack is None else 70,
        "lineWidth": 1 if stack is None else 0,
        "showPoints": "never",
        **({} if stack is None else {"stacking": {"group": "A", "mode": "normal"}}),
        **(custom or {}),
    }
    panel["options"] = {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if points is not None:
        panel["maxDataPoints"] = points
    for pattern, colour in (stack or {}).items():
        _look(panel, "byRegexp", f"/{pattern}/", fixed(colour))
    return _ask(panel, lines, by_name=by_name, by_pattern=by_pattern)


def timeline(
    title: str,
    text: str,
    span: int,
    height: int,
    values: Values,
    *lines: Line,
    empty: str | None = None,
) -> Panel:
    """Return one lane per series, in the colour of its value at each time."""
    results = {
        str(number): {"text": word, "color": colour, "index": number}
        for number, (word, colour) in enumerate(values, start=1)
    }
    panel = _panel("state-timeline", title, text, "none", span, height, empty, {})
    panel["fieldConfig"]["defaults"] |= {
        "color": {"mode": "thresholds"},
        "custom": {"fillOpacity": 85, "lineWidth": 0},
        "mappings": [{"type": "value", "options": results}],
    }
    panel["options"] = {
        "alignValue": "left",
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "perPage": 20,
        "rowHeight": 0.85,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "asc"},
    }
    return _ask(panel, lines)


def heatmap(
    title: str, text: str, unit: str, span: int, scheme: str, line: Line, empty: str
) -> Panel:
    """Return one row per series, the darker the larger its value; *scheme* is one of Grafana's."""
    panel = _panel("heatmap", title, text, unit, span, 10, empty, {})
    panel["fieldConfig"]["defaults"]["custom"] = {}
    panel["options"] = {
        "calculate": False,
        "cellGap": 0,
        "cellValues": {"unit": unit},
        "color": {
            "exponent": 0.5,
            "fill": "",
            "mode": "scheme",
            "reverse": False,
            "scheme": scheme,
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-09},
        "legend": {"show": True},
        "selectionMode": "x",
        "showValue": "auto",
        "tooltip": {"mode": "single"},
        "yAxis": {},
    }
    return _ask(panel, [line])


def table(
    title: str,
    text: str,
    span: int,
    exprs: Iterable[str],
    columns: Mapping[str, Look],
    *,
    order: str,
    key: str = "key",
    hidden: Sequence[str] = (),
    empty: str,
    height: int = 6,
    unit: str = "none",
) -> Panel:
    """Join queries for now on their *key* and show *columns*, by the names of their fields.

    The values of the first query are the field "Value #A", and so on. *order* is the field by
    which rows are sorted: values from the largest on, a label, such as the index of a GPU, from
    the smallest number on. *hidden* fields are for links.
    """
    panel = _panel("table", title, text, unit, span, height, empty, {})
    panel["fieldConfig"]["defaults"]["custom"] = {"align": "auto", "inspect": False}
    panel["options"] = {
        "cellHeight": "sm",
        "footer": {"countRows": False, "reducer": [], "show": False},
        "frameIndex": 0,
        "showHeader": True,
        "showTypeIcons": False,
    }
    panel["targets"] = [
        _target(ref, expr, instant=True) | {"format": "table"}
        for ref, expr in zip(ascii_uppercase, exprs, strict=False)
    ]
    names = list(dict.fromkeys([key, *columns, *hidden, order]))
    place = {name: position for position, name in enumerate([*columns, *hidden])}
    unseen = {name: True for name in (key, order) if name not in place}
    by_value = order.startswith("Value")
    # As text, 10 would come before 9.
    number = {"targetField": order, "destinationType": "number"}
    transformations = {
        "filterFieldsByName": {"include": {"names": names}},
        "joinByField": {"byField": key, "mode": "outer"},
        **({} if by_value else {"convertFieldType": {"conversions": [number]}}),
        "sortBy": {"fields": {}, "sort": [{"field": order, "desc": by_value}]},
        "organize": {"indexByName": place, "excludeByName": unseen, "renameByName": {}},
    }
    panel["transformations"] = [
        {"id": name, "options": options} for name, options in transformations.items()
    ]
    for name, look in columns.items():
        # The panel's own text for no data would fill every empty cell.
        _look(panel, "byName", name, {"noValue": ""}, look)
    for name in hidden:  # For Grafana before and since 12.2.
        away = {"viz": True, "legend": True, "tooltip": True}
        _look(panel, "byName", name, {"custom.hidden": True, "custom.hideFrom": away})
    return panel


def _panel(
    kind: str,
    title: str,
    text: str,
    unit: str,
    span: int,
    height: int,
    empty: str | None,
    defaults: Mapping[str, int],
) -> Panel:
    nothing = {} if empty is None else {"noValue": empty}
    return {
        "type": kind,
        "title": title,
        "description": text,
        "datasource": DATASOURCE,
        "gridPos": {"h": height, "w": span},
        "fieldConfig": {"defaults": {"unit": unit, **nothing, **defaults}, "overrides": []},
        "targets": [],
        "repeatDirection": "h",
        "transparent": False,
    }


def _ask(
    panel: Panel,
    lines: Iterable[Line],
    instant: bool = False,
    by_name: Mapping[str, Look] | None = None,
    by_pattern: Mapping[str, Look] | None = None,
) -> Panel:
    for ref, (expr, legend, *looks) in zip(ascii_uppercase, lines, strict=False):
        panel["targets"].append(_target(ref, expr, instant) | {"legendFormat": legend})
        if any(looks):
            _look(panel, "byFrameRefID", ref, *looks)
    for name, look in (by_name or {}).items():
        _look(panel, "byName", name, look)
    for pattern, look in (by_pattern or {}).items():
        _look(panel, "byRegexp", f"/{pattern}/", look)
    return panel


def _target(ref: str, expr: str, instant: bool) -> dict[str, Any]:
    when = {"instant": instant, "range": not instant}
    return {"datasource": DATASOURCE, "expr": expr, "refId": ref, **when}


def _look(panel: Panel, matcher: str, what: str, *looks: Look) -> None:
    properties = [{"id": name, "value": value} for look in looks for name, value in look.items()]
    panel["fieldConfig"]["overrides"].append(
        {"matcher": {"id": matcher, "options": what}, "properties": properties}
    )


# --- How series and columns look


def column(
    title: str,
    unit: str | None = None,
    decimals: int | None = None,
    colour: str | None = None,
    width: int | None = None,
) -> Look:
    """Return the look that makes a field a column with a *title*.

    *colour* is for values that deserve attention, from 0.05 on.
    """
    given = {"displayName": title, "unit": unit, "decimals": decimals, "custom.width": width}
    look = {name: value for name, value in given.items() if value is not None}
    return look if colour is None else look | coloured_from(0.05, colour) | AS_TEXT


AS_TEXT: Final[Look] = {"custom.cellOptions": {"type": "color-text"}}
# All of a column's text, for Grafana before and since 12.2.
WRAP: Final[Look] = {
    "custom.cellOptions": {"type": "auto", "wrapText": True},
    "custom.wrapText": True,
}


def marked(values: Mapping[str, tuple[str, str]]) -> Look:
    """Return a look that writes values as words, each in its colour."""
    options = {
        value: {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(values.items())
    }
    return mapped(options)


def mapped(options: Mapping[str, Mapping[str, object]]) -> Look:
    """Return a look that shows values as *options* say."""
    return {"mappings": [{"type": "value", "options": options}]}


def coloured_from(limit: float, colour: str) -> Look:
    """Return a look that gives values *colour* from *limit* on, plain text below."""
    limits = (("text", None), (colour, limit))
    return {"color": {"mode": "thresholds"}, "thresholds": _thresholds(limits)}


def _thresholds(limits: Iterable[tuple[str, float | None]]) -> dict[str, Any]:
    steps = [{"color": colour, "value": value} for colour, value in limits]
    return {"mode": "absolute", "steps": steps}


def fixed(colour: str) -> Look:
    """Return a look that gives a series one *colour*."""
    return {"color": {"mode": "fixed", "fixedColor": colour}}


def shades(colour: str) -> Look:
    """Return a look that gives several series shades of one *colour*."""
    return {"color": {"mode": "shades", "fixedColor": colour}}


def line(width: int, dashed: bool = False) -> Look:
    """Return a look that makes a line *width* pixels wide, *dashed* or not."""
    style = {"fill": "dash", "dash": [8, 6]} if dashed else {"fill": "solid"}
    return {"custom.lineWidth": width, "custom.lineStyle": style}


# --- Links

# The value of a label of the series that was clicked, of a field in the row of a table, or of the
# cell itself.
LABEL: Final = "${__field.labels.%s}"
FIELD: Final = '${__data.fields["%s"]}'
CELL: Final = "${__value.raw}"
# What a link keeps of the dashboard that it is on, and what it takes from the row of a table.
KEPT: Final = "${datasource:queryparam}&${__url_time_range}"
SAME_CLUSTER: Final = f"{KEPT}&${{cluster:queryparam}}"
SAME_JOB: Final = f"{SAME_CLUSTER}&${{job_id:queryparam}}"
ITS_CLUSTER: Final = f"{KEPT}&var-cluster=${{__data.fields.to_cluster}}"
ITS_JOB: Final = f"{ITS_CLUSTER}&var-job_id=${{__data.fields.job_id}}"


def uid(key: str) -> str:
    """Return the fixed part of a dashboard's address."""
    return f"rankskew-{key}"


def link(title: str, url: str, **more: bool) -> Look:
    """Return a look with a link."""
    return {"links": [{"title": title, "url": url, **more}]}


def to_rank(rank: str) -> Look:
    """Return a link from a dashboard with a job to one of its ranks."""
    url = f"/d/{uid('rank')}?{SAME_JOB}&var-rank={rank}"
    return link("Open this rank", url, targetBlank=False)


def to_node(instance: str) -> Look:
    """Return a link to a node."""
    url = f"/d/{uid('node')}?{SAME_CLUSTER}&var-instance={instance}"
    return link("Open this node", url, targetBlank=False)


def to_runbook(alertname: str = LABEL % "alertname") -> Look:
    """Return a link to what to do about an alert."""
    return link("Open the runbook", f"{RUNBOOKS_URL}/{alertname}.md", targetBlank=True)


# From a cell to the job, the rank and the node of its row; see linked().
JOB_LINK: Final = link("Job ${__data.fields.job_id}", f"/d/{uid('job')}?{ITS_JOB}")
RANK_LINK: Final = link(
    "Rank ${__data.fields.rank} of ${__data.fields.job_id}",
    f"/d/{uid('rank')}?{ITS_JOB}&var-rank=${{__data.fields.rank}}",
)
NODE_LINK: Final = link(
    "Node ${__data.fields.instance}",
    f"/d/{uid('node')}?{ITS_CLUSTER}&var-instance=${{__data.fields.instance}}",
)


def keyed(expr: str, labels: Sequence[str]) -> str:
    """Return *expr* with the label `key`, made of *labels*."""
    names = ", ".join(f'"{label}"' for label in labels)
    return f'label_join({expr}, "key", "/", {names})'


def linked(expr: str) -> str:
    """Return *expr* with the label `to_cluster`: what a link sets the variable cluster to.

    It is All where series have no cluster: a field that does not exist cannot be in a link.
    """
    unnamed = f'label_replace({expr}, "to_cluster", "All", "cluster", "")'
    return f'label_replace({unnamed}, "to_cluster", "$1", "cluster", "(.+)")'
