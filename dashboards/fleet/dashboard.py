"""The fleet dashboard: which jobs and nodes need somebody, most urgent first."""

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, stat, timeseries

from dashboards.fleet.jobs import jobs
from dashboards.fleet.nodes import alerts, nodes, past
from dashboards.fleet.series import COST, JOB, LOST, POWER, STATE, UNPROBED, WORLD
from dashboards.shared.board import board, filled, firing
from dashboards.shared.panels import (
    LATE_COLOUR,
    Override,
    drawn,
    fixed,
    instant,
    query,
    shades,
    shown,
    stacked_panel,
    stat_panel,
)
from dashboards.shared.states import STATES
from dashboards.shared.tables import SEVERITIES
from dashboards.shared.variables import CLUSTER, cluster_variable

# The costliest jobs at the end of the range, so that an area is one job from end to end.
COSTLIEST: Final = f"topk(10, max_over_time({LOST}[$__range] @ end()) > 0.05)"

REFS: Final = "ABCDEFGHIJK"
# States that share a colour, told apart where they are drawn on top of each other.
SHADES: Final = {
    "hung": "#8F1D2C",
    "straggler": "#FF7383",
    "exporter_down": "#B8590B",
    "not_judgeable": "#FFCB7D",
    "rotating": "#E0B400",
    "no_probe": "#C7D0D9",
}


def fleet_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of all jobs and nodes."""
    fleet = board(
        "fleet",
        "Every job and node: which of them lose GPUs, how much that costs, and where to look.",
        CLUSTER,
    ).with_variable(cluster_variable())
    figures = (_gpus(), _lost(), _money(), _alerts(), _states())
    over_time = (_lost_by_job(), _jobs_by_state())
    return filled(fleet, (*figures, jobs(), *over_time, nodes(), alerts(), past()), {})


def _gpus() -> stat.Panel:
    return shown(
        stat_panel(
            "GPUs",
            "GPUs that jobs train on, and GPUs that all nodes have. A job with the probe counts "
            "with all its ranks; one without it with the GPUs on which its ranks were seen.",
            "none",
            span=6,
        )
        .decimals(0)
        .no_value("–"),
        (f"sum({WORLD} or {UNPROBED})", "in jobs", []),
        (f"sum(rankskew_gpus_visible{{{CLUSTER}}})", "on all nodes", []),
    )


def _lost() -> stat.Panel:
    return shown(
        stat_panel(
            "GPUs lost now",
            "GPUs that do nothing but wait, for any reason, mean of the last minute, and their "
            "share of the GPUs in jobs that can be judged or hang.",
            "none",
            span=6,
        )
        .decimals(1)
        .no_value("No job judged"),
        (f"sum({LOST})", "lost", []),
        (
            f"sum({LOST}) / sum({WORLD} and {JOB} {LOST})",
            "of the GPUs",
            [Override(id_val="unit", value="percentunit")],
        ),
    )


def _money() -> stat.Panel:
    # A subquery, because who evaluates these rules more often than each minute adds up more.
    minutes = f"sum_over_time(sum({COST})[$__range:1m])"
    energy = f"sum_over_time(sum({POWER})[$__range:1m])"
    return shown(
        stat_panel(
            "Money and energy lost",
            "US$ for GPUs that do nothing but wait: per hour now, and over the time range above. "
            "GPUs lost times the price of a GPU hour; nothing until you record one. And the energy "
            "that these GPUs took in this range, by the mean power of their job's GPUs.",
            "currencyUSD",
            span=6,
        ).no_value("–"),
        (f"sum({COST})", "per hour", []),
        (f"{minutes} / 60", "in this range", []),
        (f"{energy} / 60", "in this range", [Override(id_val="unit", value="watth")]),
    )


def _alerts() -> stat.Panel:
    panel = stat_panel(
        "Alerts firing now",
        "Number of firing alerts of each severity. A critical one is worth a page, a warning can "
        "wait until somebody is at work, and info never calls anybody.",
        "none",
        span=6,
    ).no_value("None")
    for ref, (severity, (words, colour)) in zip("ABC", SEVERITIES.items(), strict=True):
        alerts = firing(f'severity="{severity}",{CLUSTER}')
        panel.with_target(instant(f"count({alerts})", words, ref))
        panel.override_by_query(ref, [fixed(colour)])
    return panel


def _states() -> stat.Panel:
    panel = (
        stat_panel(
            "Jobs by state",
            "Number of jobs in each state, most urgent first; a job is in exactly one. A state "
            "without a job is left out.",
            "none",
            span=24,
        )
        .height(3)
        # Otherwise each is as large as its own place allows.
        .text(common.VizTextDisplayOptions().title_size(13).value_size(30))
        .no_value("No job")
    )
    for ref, (state, (words, colour)) in zip(REFS, STATES.items(), strict=True):
        panel.with_target(instant(f"count({STATE % state})", words, ref))
        panel.override_by_query(ref, [fixed(colour)])
    return panel


def _lost_by_job() -> timeseries.Panel:
    return drawn(
        stacked_panel(
            "GPUs lost, by job",
            "GPUs that do nothing but wait, of the ten jobs that lost most at their worst, and "
            "of all other jobs together.",
            "none",
            span=12,
            colours={},
        ).no_value("No job is judged"),
        (f"{LOST} and {JOB} {COSTLIEST}", "{{job_id}}", [shades(LATE_COLOUR)]),
        (f"sum({LOST} unless {JOB} {COSTLIEST}) > 0.05", "others", [fixed("#8E99A8")]),
    )


def _jobs_by_state() -> timeseries.Panel:
    panel = (
        stacked_panel(
            "Jobs by state over time",
            "Number of jobs in each state, the most urgent at the bottom. A job moves from one "
            "area to another when its state changes.",
            "none",
            span=12,
            colours={},
        )
        .decimals(0)
        .no_value("No job")
    )
    for ref, (state, (words, colour)) in zip(REFS, STATES.items(), strict=True):
        panel.with_target(query(f"count({STATE % state})", words, ref))
        panel.override_by_query(ref, [fixed(SHADES.get(state, colour))])
    return panel
