"""The lower rows of the job dashboard: how a late rank differs, and what hangs."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.job.peers import against_peers
from dashboards.job.series import (
    LATE,
    LOST,
    LOST_BY_STAGE,
    NOBODY,
    RANK,
    SILENT,
    SINCE_LAST_STEP,
    busy,
    peers,
    stages,
    wait,
)
from dashboards.shared.links import CELL, to_node, to_rank
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    STAGE_COLOURS,
    WAIT_COLOUR,
    coloured_from,
    column,
    drawn,
    fixed,
    line,
    rows,
    stacked_panel,
    table_panel,
    time_panel,
)
from dashboards.shared.tables import keyed_table
from dashboards.shared.variables import JOB

NOT_STUCK: Final = "No rank is known to be stuck"
# Only exposed after ten seconds in one stage. A silent rank's last report is outdated.
STUCK: Final = f"rankskew_stage_elapsed_seconds{{{JOB}}} unless {RANK} {SILENT}"
OUTSIDE_SYNC: Final = (
    f'rankskew_stage_elapsed_seconds{{stage!="sync",{JOB}}} unless {RANK} {SILENT}'
)


def difference_panels() -> Sequence[timeseries.Panel | table.Panel]:
    """Return the panels that compare the late ranks with their peers."""
    return (_late_stage(), _stage_by_stage(), _busy(), _wait())


def hang_panels() -> Sequence[timeseries.Panel | table.Panel]:
    """Return the panels that show where every rank is when nothing moves."""
    return (_ranks_by_stage(), _outside_sync(), _quiet())


def _late_stage() -> timeseries.Panel:
    stage = "on (cluster, peer_group, stage)"
    panel = time_panel(
        "Late stage: late rank and its peers",
        "Seconds per step in the stage in which each late rank fell behind, and the median of "
        "the ranks in its peer group that are not late. Drawn only while a rank is late.",
        "s",
        span=12,
    )
    return drawn(
        panel.no_value(NOBODY),
        (
            f"{stages()} and on (cluster, peer_group, rank, stage) {LATE}",
            "rank {{rank}} {{stage}}",
            [fixed(LATE_COLOUR), *line(3)],
        ),
        (
            peers(f"({stages()} and {stage} {LATE})", ", stage"),
            "median of its peers, {{stage}}",
            [fixed(PEERS_COLOUR), *line(2, dashed=True)],
        ),
    )


def _stage_by_stage() -> table.Panel:
    costliest = f"topk(1, {LOST})"
    group = f"({stages()} and on (cluster, peer_group) {costliest})"
    panel = (
        table_panel(
            "The costliest late rank, by stage",
            "Every stage of a step of the rank that costs most, and the median of its peers that "
            "are not late. Start with the stage that exceeds the median most.",
            "none",
            span=12,
        )
        .height(8)
        .no_value(NOBODY)
        .with_target(rows(f"sum by (cluster, stage) ({stages()} and {RANK} {costliest})", "A"))
        .with_target(rows(f"sum by (cluster, stage) ({peers(group, ', stage')})", "B"))
        .with_target(rows(f"sum by (cluster, stage) ({LOST_BY_STAGE} and {RANK} {costliest})", "C"))
    )
    return keyed_table(
        panel,
        {
            "stage": column("Stage", width=110),
            "Value #A": column("Late rank", "s", decimals=1, width=110),
            "Value #B": column("Its peers", "s", decimals=1, width=110),
            "Value #C": column("GPUs lost", "none", decimals=2, colour=LATE_COLOUR),
        },
        order="Value #C",
        key="stage",
    )


def _busy() -> timeseries.Panel:
    panel = time_panel(
        "Own work per step",
        "Time per step without the wait in collectives: ranks that were late in the last hour, "
        "the slowest of the others, and the median. The late rank works longest.",
        "s",
        span=12,
    )
    return against_peers(panel.no_value("No step was finished"), busy, "topk")


def _wait() -> timeseries.Panel:
    panel = time_panel(
        "Wait per step",
        "Time per step that a rank waits in collectives: ranks that were late in the last hour, "
        "the others that wait least, and the median. The culprit waits least.",
        "s",
        span=12,
    )
    panel.no_value("No wait is measured, or no step was finished")
    return against_peers(panel, wait, "bottomk")


def _ranks_by_stage() -> timeseries.Panel:
    return drawn(
        stacked_panel(
            "Where the ranks are stuck",
            "Number of ranks that have been in one stage for ten seconds or more, or are silent. "
            "In a hang, all ranks except the culprit are in sync.",
            "none",
            span=7,
            colours={f"^{stage}$": colour for stage, colour in STAGE_COLOURS.items()},
        )
        .decimals(0)
        .no_value(NOT_STUCK),
        (f"count by (cluster, stage) ({STUCK})", "{{stage}}", []),
        (f"count by (cluster) ({SILENT})", "silent", [fixed(PEERS_COLOUR)]),
    )


def _outside_sync() -> table.Panel:
    silent = f'label_replace({SILENT}, "stage", "silent", "", "")'
    suspects = f"rank_stage:rankskew_hang_suspect:group{{{JOB}}}"
    hung = f"{suspects} * on (cluster) group_left () job:rankskew_hung:seconds{{{JOB}}}"
    panel = (
        table_panel(
            "Stuck outside sync",
            "Ranks that have been in a stage other than sync for ten seconds or more, or are "
            "silent, and how long the job has hung because of them. A stopped process is only "
            "silent.",
            "none",
            span=10,
        )
        .height(8)
        .no_value(NOT_STUCK)
        .with_target(rows(f"topk(20, {OUTSIDE_SYNC} or {silent})", "A"))
        .with_target(rows(f"max by (cluster, rank) ({hung})", "B"))
    )
    return keyed_table(
        panel,
        {
            "rank": [*column("Rank", width=60), to_rank(CELL)],
            "instance": [*column("Node", width=170), to_node(CELL)],
            "stage": column("Stage", width=90),
            "Value #A": column("For", "s", decimals=0, width=80),
            "Value #B": column("Job hangs for", "s", decimals=0),
        },
        order="Value #A",
        key="rank",
    )


def _quiet() -> timeseries.Panel:
    return drawn(
        time_panel(
            "Time since the last activity",
            "Time since any rank finished a step, and since the last report of the rank that has "
            "been silent longest, each measured on its own node.",
            "s",
            span=7,
        ),
        (SINCE_LAST_STEP, "last step of any rank", [*coloured_from(60, LATE_COLOUR), *line(2)]),
        (f"max by (cluster) ({SILENT})", "longest silent rank", [fixed(WAIT_COLOUR), *line(2)]),
    )
