"""The panels of the rank dashboard that show this rank alone: its stages, its code, its place."""

from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.rank.series import THIS, THIS_GPU, of_peers, per_step
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Override,
    column,
    drawn,
    fixed,
    line,
    query,
    rows,
    stacked_panel,
    table_panel,
    time_panel,
)
from dashboards.shared.tables import keyed_table
from dashboards.shared.variables import CLUSTER, ONE_RANK

NO_STEP: Final = "No step was finished"


def stages() -> timeseries.Panel:
    """Return the rank's step over time, divided into its stages."""
    each = per_step("rankskew_stage_seconds_total")(ONE_RANK)
    return (
        stacked_panel(
            "Stages of its step",
            "Where the time of each step of this rank goes; the stages add up to the step. Sync "
            "is the wait for others. A stage that grows is where the rank began to be late.",
            "s",
            span=16,
            colours={f"^{stage}$": colour for stage, colour in STAGE_COLOURS.items()},
        )
        .height(10)
        .no_value(NO_STEP)
        .with_target(query(f"sum by (cluster, stage) ({each})", "{{stage}}"))
    )


def by_stage() -> table.Panel:
    """Return each stage of the rank's step beside the median of its peers."""
    each = per_step("rankskew_stage_seconds_total")
    panel = (
        table_panel(
            "Beside its peers, by stage",
            "Each stage of a step of this rank, the median of its peer group, and the GPUs that "
            "wait because of the difference.",
            "none",
            span=8,
        )
        .height(10)
        .no_value(NO_STEP)
        .with_target(rows(f"sum by (cluster, stage) ({each(ONE_RANK)})", "A"))
        .with_target(rows(f"quantile by (cluster, stage) (0.5, {of_peers(each)})", "B"))
        .with_target(
            rows(
                "sum by (cluster, stage)"
                f" (rank_stage:rankskew_gpus_lost:sum{{{ONE_RANK}}}) or 0 * sum by"
                f" (cluster, stage) ({each(ONE_RANK)})",
                "C",
            )
        )
    )
    return keyed_table(
        panel,
        {
            "stage": column("Stage", width=90),
            "Value #A": column("This rank", "s", decimals=1, width=100),
            "Value #B": column("Its peers", "s", decimals=1, width=100),
            "Value #C": column("GPUs lost", "none", decimals=2, colour=LATE_COLOUR),
        },
        order="Value #A",
        key="stage",
    )


def lines() -> timeseries.Panel:
    """Return where in the code the rank was found while it was late."""
    return (
        time_panel(
            "Lines of code",
            "The line of your code in which the late rank's stack was found most often, for each "
            "stage, and the share of the samples that found it there. Only while it is late.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("No line of code is known")
        .with_target(query(f"rankskew_late_line_ratio{{{ONE_RANK}}}", "{{stage}}: {{place}}"))
    )


def cause() -> timeseries.Panel:
    """Return the figure by which the rank's exporter explains why it is late, and its share."""
    figure = f'rankskew_late_cause_figure{{of="%s",{ONE_RANK}}}'
    share = f"rankskew_late_cause_share_ratio{{{ONE_RANK}}}"
    return drawn(
        time_panel(
            "Figure that explains it",
            "While it is late: the figure of this rank by which its exporter explains that, in "
            "base units, that of its peers, and (on the right) how much of its delay it explains. "
            "Another figure begins where another cause explains more.",
            "sishort",
            span=24,
        )
        .height(6)
        .no_value("Not late, or no figure explains it"),
        (figure % "rank", "{{figure}} of this rank", [fixed(LATE_COLOUR), *line(3)]),
        (figure % "peers", "{{figure}} of its peers", [fixed(PEERS_COLOUR), *line(2, dashed=True)]),
        (
            share,
            "explained",
            [
                fixed(WAIT_COLOUR),
                Override(id_val="custom.axisPlacement", value="right"),
                Override(id_val="unit", value="percentunit"),
                Override(id_val="max", value=1),
            ],
        ),
    )


def throttled() -> timeseries.Panel:
    """Return for which reasons the clocks of the rank's GPU were throttled."""
    reasons = (
        f"rate(rankskew_gpu_throttle_seconds_total{{{CLUSTER}}}[$__rate_interval])"
        f" and on (cluster, instance, gpu_uuid) {THIS_GPU}"
    )
    return (
        time_panel(
            "GPU clocks throttled",
            "Share of the time in which the clocks of this rank's GPU were throttled, by reason. "
            "gpu_idle is a GPU without work, not a fault.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("Not throttled, or not measured")
        .with_target(query(f"({reasons}) > 0.01", "{{reason}}"))
    )


def node_pressure() -> timeseries.Panel:
    """Return how long the tasks of the rank's node wait for CPU, memory and I/O."""
    pressure = (
        f"rate(rankskew_node_pressure_waiting_seconds_total{{{CLUSTER}}}[$__rate_interval])"
        f" and on (cluster, instance) {THIS}"
    )
    return (
        time_panel(
            "Pressure on its node",
            "Share of the time in which some task of the node waited for the resource. The "
            "rank's node has its own dashboard: click the node above.",
            "percentunit",
            span=6,
        )
        .max(1)
        .no_value("The kernel of the node measures no pressure")
        .with_target(query(pressure, "{{resource}}"))
    )


def identity() -> table.Panel:
    """Return who the rank is: its place in the job and its software."""
    place = {
        "local_rank": "Local",
        "peer_group": "Peer group",
        "dp": "DP",
        "tp": "TP",
        "pp": "PP",
        "clock": "Timed by",
        "level": "Level",
        "attempt": "Attempt",
    }
    versions = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "Driver"}
    runtime = f"rankskew_runtime_info{{{ONE_RANK}}}"
    gpu = f"rankskew_gpu_rank_info{{{ONE_RANK}}}"
    panel = (
        table_panel(
            "Who it is",
            "The rank's place in the job's parallelism, how it is timed, the attempt of the "
            "launcher, and the versions that it runs.",
            "string",
            span=24,
        )
        .height(4)
        .no_value("The rank is not seen")
        .with_target(rows(f"group by ({', '.join(place)}, rank) ({THIS})", "A"))
        .with_target(rows(f"group by ({', '.join(versions)}, rank) ({runtime})", "B"))
        .with_target(rows(f"group by (gpu_uuid, rank) ({gpu})", "C"))
    )
    names = {"rank": "Rank", **place, **versions}
    fields = {name: column(title, "string", width=95) for name, title in names.items()}
    fields["gpu_uuid"] = column("GPU", "string")
    return keyed_table(panel, fields, order="rank", key="rank")
