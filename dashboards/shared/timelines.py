"""Shapes that show what something was when: lanes in the colours of their values, and heatmaps."""

from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, heatmap, statetimeline
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models

from dashboards.shared.panels import DATASOURCE, STAGE_COLOURS
from dashboards.shared.states import STATES

# The word and the colour of each value of a lane; values are numbers, from 1 on.
Values = Sequence[tuple[str, str]]

STATE_VALUES: Final[Values] = tuple(STATES.values())
STAGE_VALUES: Final[Values] = tuple(STAGE_COLOURS.items())


def coded(series: str, label: str, names: Mapping[str, object]) -> str:
    """Return *series* with the number of its *label* among *names* as its value, from 1 on.

    *series* is a selector. A lane needs one series, whose value changes; not one per label.
    """
    head, rest = series.split("{", 1)
    return " or ".join(
        f'0 * {head}{{{label}="{name}",{rest} + {number}'
        for number, name in enumerate(names, start=1)
    )


def timeline_panel(
    title: str, description: str, span: int, height: int, values: Values
) -> statetimeline.Panel:
    """Return one lane per series, in the colour of its value at each time."""
    results = {
        str(number): models.ValueMappingResult(text=word, color=colour, index=number)
        for number, (word, colour) in enumerate(values, start=1)
    }
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit("none")
        .span(span)
        .height(height)
        .mappings([models.ValueMap(options=results)])
        .color_scheme(dashboard.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .merge_values(True)
        .show_value(common_models.VisibilityMode.AUTO)
        .row_height(0.85)
        .line_width(0)
        .fill_opacity(85)
        .legend(common.VizLegendOptions().show_legend(False))
    )


def heatmap_panel(title: str, description: str, unit: str, span: int, scheme: str) -> heatmap.Panel:
    """Return one row per series, the darker the larger its value; *scheme* is one of Grafana's."""
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(span)
        .height(10)
        .calculate(False)
        .cell_gap(0)
        .cell_values(heatmap.CellValues().unit(unit))
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme(scheme)
            .exponent(0.5)
            .steps(64)
            .reverse(False)
        )
        .show_legend()
        .tooltip(heatmap.HeatmapTooltip().mode(common_models.TooltipDisplayMode.SINGLE))
    )
