"""Panels as Grafana reads them: their few shapes, and how queries, series and columns look.

Late is red and waiting is blue in every panel; a stage has one colour, as on the live page.
"""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Final

from exporter.vocabulary import words

Panel = dict[str, Any]
# How one series or column looks different: Grafana's overrides, by their ids.
Look = dict[str, Any]
# A query, the name of its series, and how they differ from others of the panel: colours or looks.
Line = tuple[str, str, *tuple[Look | str, ...]]
# The word and the colour of each value of a lane; values are numbers, from 1 on.
Values = Sequence[tuple[str, str]]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

RED: Final = words.COLOURS["red"].dashboard
BLUE: Final = words.COLOURS["blue"].dashboard
GREY: Final = words.COLOURS["grey"].dashboard
ORANGE: Final = words.COLOURS["orange"].dashboard
GREEN: Final = words.COLOURS["green"].dashboard
STAGE_COLOURS: Final = {name: stage.colour.upper() for name, stage in words.STAGES.items()}
# Most urgent first, as job:rankskew_state:info names them: the word for people, and its colour.
STATES: Final = {
    name: (state.word, words.COLOURS[state.colour].dashboard)
    for name, state in words.STATES.items()
}
SEVERITIES: Final = {
    "critical": ("Critical", RED),
    "warning": ("Warning", ORANGE),
    "info": ("Info", BLUE),
}

# Points of a panel that reads every rank or GPU of a job at each of them.
POINTS_OF_ALL: Final = 60


# --- Shapes

# Each has a title and a *text*: what it shows, and how to read it. *more* may set its text if
# *empty*, its *height*, its *span* of the 24 columns if the panels of a line are not equally wide,
# and other defaults of Grafana's.


def stat(
    title: str,
    text: str,
    unit: str,
    *figures: Line,
    size: int = 28,
    mode: str = "value_and_name",
    orientation: str = "auto",
    limits: Sequence[tuple[str, float | None]] = (("text", None),),
    by_name: Mapping[str, Look] | None = None,
    **more: Any,
) -> Panel:
    """Return a big figure per series, each with its name, *size* pixels high.

    A colour of *limits* holds from its value on, the first from below all.
    """
    panel = _panel("stat", title, text, unit, thresholds=_thresholds(limits), **more)
    panel["options"] = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "center",
        "orientation": orientation,
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "text": {"titleSize": 12, "valueSize": size},
        "textMode": mode,
    }
    return _ask(panel, figures, instant=True, by_name=by_name)


def sentence(title: str, text: str, *figures: Line, **more: Any) -> Panel:
    """Return the names of series instead of their values, one below the other.

    Grafana shows nothing for no series then, so there should always be one.
    """
    return stat(title, text, "none", *figures, mode="name", orientation="horizontal", **more)


def timeseries(
    title: str,
    text: str,
    unit: str,
    *lines: Line,
    points: int | None = None,
    stack: Mapping[str, str] | None = None,
    **more: Any,
) -> Panel:
    """Return thin lines over time with a legend below, zero included.

    With *stack* they are areas that add up, in its colours for series that match its patterns.
    """
    areas = {
        "fillOpacity": 70,
        "lineWidth": 0,
        "showPoints": "never",
        "stacking": {"group": "A", "mode": "normal"},
    }
    thin = {"fillOpacity": 0, "lineWidth": 1, "showPoints": "never"}
    custom = thin if stack is None else areas
    panel = _panel(
        "timeseries", title, text, unit, **{"height": 8, "min": 0, "custom": custom, **more}
    )
    panel["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if points is not None:
        panel["maxDataPoints"] = points
    for pattern, colour in (stack or {}).items():
        _look(panel, "byRegexp", f"/{pattern}/", colour)
    return _ask(panel, lines)


def timeline(title: str, text: str, values: Values, *lines: Line, **more: Any) -> Panel:
    """Return one lane per series, in the colour of its value at each time."""
    numbered = marked({str(number): value for number, value in enumerate(values, start=1)})
    custom = {"fillOpacity": 85, "lineWidth": 0}
    colours = {"color": {"mode": "thresholds"}, **numbered}
    panel = _panel("state-timeline", title, text, "none", custom=custom, **colours, **more)
    panel["options"] = {"legend": {"showLegend": False}}
    return _ask(panel, lines)


def table(
    title: str,
    text: str,
    exprs: Iterable[str],
    columns: Mapping[str, Look],
    *,
    order: str,
    key: str = "key",
    hidden: Sequence[str] = (),
    unit: str = "none",
    **more: Any,
) -> Panel:
    """Join queries for now on their *key* and show *columns*, by the names of their fields.

    The values of the first query are the field "Value #A", and so on. *order* is the field by
    which rows are sorted: values from the largest on, a label, such as the index of a GPU, from
    the smallest number on. *hidden* fields are for links.
    """
    custom = {"align": "auto", "inspect": False}
    panel = _panel("table", title, text, unit, **{"height": 6, "custom": custom, **more})
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
    *,
    empty: str | None = None,
    span: int | None = None,
    height: int = 4,
    **defaults: Any,
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
    }


def _ask(
    panel: Panel,
    lines: Iterable[Line],
    instant: bool = False,
    by_name: Mapping[str, Look] | None = None,
) -> Panel:
    for ref, (expr, legend, *looks) in zip(ascii_uppercase, lines, strict=False):
        panel["targets"].append(_target(ref, expr, instant) | {"legendFormat": legend})
        if any(looks):
            _look(panel, "byFrameRefID", ref, *looks)
    for name, look in (by_name or {}).items():
        _look(panel, "byName", name, look)
    return panel


def _target(ref: str, expr: str, instant: bool) -> dict[str, Any]:
    when = {"instant": instant, "range": not instant}
    return {"datasource": DATASOURCE, "expr": expr, "refId": ref, **when}


def _look(panel: Panel, matcher: str, what: str, *looks: Look | str) -> None:
    given = (fixed(look) if isinstance(look, str) else look for look in looks)
    properties = [{"id": name, "value": value} for look in given for name, value in look.items()]
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
