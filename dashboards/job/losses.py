"""The job's loss: by kind of waiting, by rank and stage, and for each late rank."""

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.job.series import (
    AT_END,
    CAUSE,
    GPU_INDEX,
    LATE,
    LATE_SINCE,
    LOST,
    LOST_BY_STAGE,
    NOBODY,
    ROTATING_BY_STAGE,
    beside_late,
    busy,
    late_now,
    peers,
    wait,
)
from dashboards.shared.causes import as_values, explained
from dashboards.shared.links import CELL, FIELD, LABEL, to_node, to_rank
from dashboards.shared.panels import (
    LATE_COLOUR,
    STAGE_COLOURS,
    Override,
    column,
    drawn,
    query,
    rows,
    stacked_panel,
    table_panel,
)
from dashboards.shared.tables import keyed_table
from dashboards.shared.variables import JOB
from exporter.vocabulary.words import KINDS


def lost_by_kind() -> timeseries.Panel:
    """Return all waiting over time; the kinds add up."""
    panel = stacked_panel(
        "GPUs lost, by kind",
        "Late ranks: the same ranks most of the time. No stable leader: a different rank in each "
        "step, as with uneven sequence lengths. Unequal peer groups: a heavier pipeline stage. "
        "Communication: the wait that even the rank with the least wait has. While a job hangs, "
        "all its GPUs are lost. The kinds are only known if the ranks compare their steps.",
        "none",
        span=12,
        colours={kind.name: kind.colour for kind in KINDS.values()},
    )
    for ref, (name, kind) in zip("ABCDE", KINDS.items(), strict=True):
        series = f'job_kind:rankskew_gpus_lost:sum{{kind="{name}",{JOB}}}'
        panel.with_target(query(series, kind.name, ref))
    return panel.no_value("No rank of this job can be judged")


def lost_by_rank_and_stage() -> timeseries.Panel:
    """Return the cost of each late rank over time, in the colour of its stage."""
    return drawn(
        stacked_panel(
            "GPUs lost, by rank and stage",
            "The cost of each late rank, in the stage in which it falls behind; the colour shows "
            "the stage, as in the other panels. Pale: the loss to a different rank in each step; "
            "only known if the ranks compare their steps.",
            "none",
            span=12,
            colours={f" {stage}$": colour for stage, colour in STAGE_COLOURS.items()},
        ).no_value(NOBODY),
        (
            f"sum by (cluster, rank, stage) ({LOST_BY_STAGE}"
            " and on (cluster, peer_group, rank, stage)"
            f" topk(10, max_over_time({LOST_BY_STAGE}[1h]{AT_END}) > 0.02))",
            "rank {{rank}} {{stage}}",
            [to_rank(LABEL % "rank")],
        ),
        (
            f"{ROTATING_BY_STAGE} and on (cluster, stage)"
            f" max_over_time({ROTATING_BY_STAGE}[1h]{AT_END}) > 0.02",
            "no stable leader {{stage}}",
            [Override(id_val="custom.fillOpacity", value=25)],
        ),
    )


def late_ranks() -> table.Panel:
    """Return one row for each rank that is late now."""
    panel = (
        table_panel(
            "Late ranks",
            "Every late rank: where it runs, in which stage it fell behind, the kind of lateness "
            "and its size as a share of its peers' time, the cause, the cost, and its own work "
            "and wait per step compared with the median of its peers. The late rank works "
            "longest and waits least.",
            "none",
            span=24,
        )
        .height(5)
        .no_value(NOBODY)
        .with_target(rows(LATE, "A"))
        .with_target(rows(f"sum by (cluster, rank) ({LOST})", "B"))
        .with_target(rows(f"sum by (cluster, rank) ({late_now(busy())})", "C"))
        .with_target(rows(beside_late(peers(busy())), "D"))
        .with_target(rows(f"sum by (cluster, rank) ({late_now(wait())})", "E"))
        .with_target(rows(beside_late(peers(wait())), "F"))
        .with_target(rows(f"min by (cluster, rank) ({late_now(LATE_SINCE)})", "G"))
        .with_target(rows(f"max by (cluster, rank, gpu) ({late_now(GPU_INDEX)})", "H"))
        .with_target(rows(f"max by (cluster, rank, why) ({explained(CAUSE)})", "I"))
    )
    return keyed_table(
        panel,
        {
            "rank": [*column("Rank", width=60), to_rank(CELL)],
            "nodename": [*column("Node", width=150), to_node(FIELD % "instance")],
            "stage": column("Late in", width=90),
            "kind": column("How", width=90),
            "Value #A": column("Slower by", "percentunit", decimals=0, width=85),
            "Value #B": column("GPUs lost", "none", decimals=2, colour=LATE_COLOUR, width=85),
            "Value #G": column("Late since", "dateTimeFromNow", width=125),
            "why": [*column("Cause"), as_values()],
            "Value #C": column("Own work", "s", decimals=1, width=85),
            "Value #D": column("Peers' work", "s", decimals=1, width=95),
            "Value #E": column("Wait", "s", decimals=1, width=85),
            "Value #F": column("Peers' wait", "s", decimals=1, width=95),
            "gpu": column("GPU", width=55),
        },
        order="Value #B",
        hidden=("instance",),
        key="rank",
    )
