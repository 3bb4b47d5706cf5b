"""The few shapes and colours of all dashboards.

Late is red and waiting is blue in every panel; a stage has one colour, as on the live page.
"""

from collections.abc import Callable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from exporter.vocabulary import words

RUNBOOKS_URL: Final = "https://github.com/rankskew/rankskew/blob/main/alerts/runbooks"
DATASOURCE: Final = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")

LATE_COLOUR: Final = words.COLOURS["red"].dashboard
WAIT_COLOUR: Final = words.COLOURS["blue"].dashboard
PEERS_COLOUR: Final = words.COLOURS["grey"].dashboard
STAGE_COLOURS: Final = {name: stage.colour.upper() for name, stage in words.STAGES.items()}

# Points of a panel that reads every rank or GPU of a job at each of them.
POINTS_OF_ALL: Final = 60

Override = models.DynamicConfigValue
P = TypeVar("P", stat.Panel, statetimeline.Panel, timeseries.Panel)
# A query, the name of its series, and how they differ from others of the panel.
Line = tuple[str, str, Sequence[Override]]


def query(expr: str, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return a query over the dashboard's time range."""
    return _query(expr, ref).legend_format(legend).range()


def instant(expr: str, legend: str = "", ref: str = "A") -> prometheus.Dataquery:
    """Return a query for now only."""
    return _query(expr, ref).legend_format(legend).instant()


def rows(expr: str, ref: str = "A") -> prometheus.Dataquery:
    """Return a query for now whose series become rows of a table."""
    return _query(expr, ref).instant().format(PromQueryFormat.TABLE)


def _query(expr: str, ref: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().datasource(DATASOURCE).ref_id(ref).expr(expr)


def increase(counter: str) -> str:
    """Return what *counter* has grown by, where its first value is growth, too.

    A count of what should not happen appears only with the first of it.
    """
    window = "$__rate_interval"
    first = f"max_over_time({counter}[{window}]) > 0 unless {counter} offset {window}"
    return f"(increase({counter}[{window}]) > 0 or {first})"


def increase_per_second(counter: str) -> str:
    """Return increase() per second."""
    return f"1000 * {increase(counter)} / $__rate_interval_ms"


def drawn(panel: P, *lines: Line) -> P:
    """Draw *lines* over time."""
    return _asked(panel, query, lines)


def shown(panel: stat.Panel, *figures: Line) -> stat.Panel:
    """Show *figures* as they are now."""
    return _asked(panel, instant, figures)


def _asked(
    panel: P, ask: Callable[[str, str, str], prometheus.Dataquery], lines: Sequence[Line]
) -> P:
    for ref, (expr, legend, overrides) in zip(ascii_uppercase, lines, strict=False):
        panel.with_target(ask(expr, legend, ref))
        if overrides:
            panel.override_by_query(ref, list(overrides))
    return panel


def figure_size(pixels: int = 28) -> common.VizTextDisplayOptions:
    """Return one size for figures, so that what is short does not shout."""
    return common.VizTextDisplayOptions().title_size(12).value_size(pixels)


def stat_panel(title: str, description: str, unit: str, span: int) -> stat.Panel:
    """Return a big figure per series, each with its name."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .justify_mode(common_models.BigValueJustifyMode.CENTER)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(steps(("text", None)))
        .text(figure_size())
    )


def sentence_panel(title: str, description: str, span: int, size: int) -> stat.Panel:
    """Return the names of series instead of their values, one below the other, *size* pixels high.

    Grafana shows nothing for no series then, so there should always be one.
    """
    return (
        stat_panel(title, description, "none", span)
        .text_mode(common_models.BigValueTextMode.NAME)
        .text(figure_size(size))
        .orientation(common_models.VizOrientation.HORIZONTAL)
    )


def time_panel(title: str, description: str, unit: str, span: int) -> timeseries.Panel:
    """Return thin lines over time with a legend below, zero included."""
    return (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .min(0)
        .line_width(1)
        .fill_opacity(0)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )


def stacked_panel(
    title: str, description: str, unit: str, span: int, colours: Mapping[str, str]
) -> timeseries.Panel:
    """Return areas that add up, with one of *colours* for the series that match its pattern."""
    panel = (
        time_panel(title, description, unit, span)
        .fill_opacity(70)
        .line_width(0)
        .stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    )
    for pattern, colour in colours.items():
        panel.override_by_regexp(f"/{pattern}/", [fixed(colour)])
    return panel


def table_panel(title: str, description: str, unit: str, span: int) -> table.Panel:
    """Return a table; its columns come from *columns*."""
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(6)
        .show_header(True)
    )


def transformation(name: str, options: Mapping[str, Any]) -> models.DataTransformerConfig:
    """Return the transformation *name* of Grafana with its *options*."""
    return models.DataTransformerConfig(id_val=name, options=dict(options))


def column(
    title: str,
    unit: str | None = None,
    decimals: int | None = None,
    colour: str | None = None,
    width: int | None = None,
) -> list[Override]:
    """Return the overrides that make a field a column with a *title*.

    *colour* is for values that deserve attention, from 0.05 on.
    """
    overrides = [Override(id_val="displayName", value=title)]
    if unit is not None:
        overrides.append(Override(id_val="unit", value=unit))
    if decimals is not None:
        overrides.append(Override(id_val="decimals", value=decimals))
    if width is not None:
        overrides.append(Override(id_val="custom.width", value=width))
    if colour is not None:
        overrides += [
            *coloured_from(0.05, colour),
            Override(id_val="custom.cellOptions", value={"type": "color-text"}),
        ]
    return overrides


def coloured_from(limit: float, colour: str) -> list[Override]:
    """Return overrides that give values *colour* from *limit* on, plain text below."""
    limits = [{"color": "text", "value": None}, {"color": colour, "value": limit}]
    return [
        Override(id_val="color", value={"mode": "thresholds"}),
        Override(id_val="thresholds", value={"mode": "absolute", "steps": limits}),
    ]


def fixed(colour: str) -> Override:
    """Return an override that gives a series one *colour*."""
    return Override(id_val="color", value={"mode": "fixed", "fixedColor": colour})


def shades(colour: str) -> Override:
    """Return an override that gives several series shades of one *colour*."""
    return Override(id_val="color", value={"mode": "shades", "fixedColor": colour})


def line(width: int, dashed: bool = False) -> list[Override]:
    """Return overrides that make a line *width* pixels wide, *dashed* or not."""
    style = {"fill": "dash", "dash": [8, 6]} if dashed else {"fill": "solid"}
    return [
        Override(id_val="custom.lineWidth", value=width),
        Override(id_val="custom.lineStyle", value=style),
    ]


def steps(*limits: tuple[str, float | None]) -> dashboard.ThresholdsConfig:
    """Return thresholds: each colour holds from its value on, the first from below all."""
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(color=colour, value=value) for colour, value in limits])
    )
