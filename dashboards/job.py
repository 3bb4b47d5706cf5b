"""The job dashboard: who is late, in which stage, since when, at what cost."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard, stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import BigValueTextMode

from dashboards.job_details import difference_panels, gpu_panels, hang_panels
from dashboards.job_series import (
    AT_END,
    CAUSE,
    FIRING,
    JOB,
    LATE,
    LATE_SINCE,
    LOST,
    LOST_BY_STAGE,
    RANK,
    RANK_GPU,
    ROTATING_BY_STAGE,
    SINCE_LAST_STEP,
    SOURCE,
    beside_late,
    busy,
    late_now,
    peers,
    wait,
)
from dashboards.panels import (
    DATASOURCE,
    LATE_COLOUR,
    PEERS_COLOUR,
    RUNBOOKS_URL,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Override,
    coloured_from,
    column,
    fixed,
    instant,
    join_rows,
    query,
    rows,
    stacked_panel,
    stat_panel,
    steps,
    table_panel,
)

# By kind: what the panel calls it, and its colour.
KINDS: Final = {
    "hung": ("job hangs", "#8F1D2C"),
    "persistent": ("late ranks", LATE_COLOUR),
    "rotating": ("no stable leader", "#FF9830"),
    "group": ("unequal peer groups", "#B877D9"),
    "common": ("communication", WAIT_COLOUR),
}
NOT_TOLD_APART: Final = "any other wait"
# The late ranks that the figures at the top have room for.
COSTLIEST: Final = f"topk(2, {LOST})"


def job_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of one training job."""
    board = (
        dashboard.Dashboard("Rankskew / Job")
        .uid("rankskew-job")
        .description(
            "Which rank a training job waits for, in which stage, since when, at what cost."
        )
        .tags(["rankskew"])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_runbooks())
        .annotation(_alerts())
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(_job_variable())
    )
    for figure in (
        _gpus_lost(),
        _lost_cost(),
        _who(),
        _since(),
        _step_time(),
        _judged(),
        _firing(),
    ):
        board.with_panel(figure)
    board.with_panel(_lost_by_kind()).with_panel(_lost_by_rank_and_stage())
    board.with_panel(_late_ranks())
    for title, panels in (
        ("How the late rank differs from its peers", difference_panels()),
        ("Is the job hanging?", hang_panels()),
        ("GPUs of the ranks", gpu_panels()),
    ):
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


def _runbooks() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Runbooks")
        .type(models.DashboardLinkType.LINK)
        .icon("doc")
        .tooltip("What each alert means and what to do about it")
        .url(RUNBOOKS_URL)
        .target_blank(True)
    )


def _alerts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(LATE_COLOUR)
        .expr(FIRING)
        .title_format("{{alertname}}")
        .text_format("rank {{rank}} {{stage}}")
        .tag_keys("severity")
    )


def _job_variable() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("job_id")
        .label("Job")
        .datasource(DATASOURCE)
        .query("label_values(rankskew_node_ranks, job_id)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _gpus_lost() -> stat.Panel:
    return (
        stat_panel(
            "GPUs lost now",
            "GPUs that do nothing but wait, as a mean of the last minute: for late ranks, and for "
            "any reason (communication included), of all GPUs of the job.",
            "none",
            span=4,
        )
        .decimals(1)
        .no_value("No rank judged")
        .with_target(
            instant(
                f'job_kind:rankskew_gpus_lost:sum{{kind="persistent",{JOB}}}',
                "late ranks",
                "A",
            )
        )
        .with_target(instant(f"job:rankskew_gpus_lost:sum{{{JOB}}}", "any wait", "B"))
        .with_target(instant(f"job:rankskew_world_size:max{{{JOB}}}", "of all", "C"))
        .override_by_query("A", coloured_from(0.05, LATE_COLOUR))
        .override_by_query("C", [Override(id_val="decimals", value=0)])
    )


def _lost_cost() -> stat.Panel:
    return (
        stat_panel(
            "Cost",
            "US$ an hour for GPUs that do nothing but wait, for any reason: GPUs lost times the "
            "price of a GPU hour, which is a usual one until yours is recorded.",
            "currencyUSD",
            span=2,
        )
        .decimals(2)
        .no_value("–")
        .with_target(instant(f"job:rankskew_lost_cost_per_hour:sum{{{JOB}}}", "lost an hour"))
    )


def _who() -> stat.Panel:
    return (
        stat_panel(
            "Who is late",
            "The ranks that the job waits for, each with the stage in which it began to fall "
            "behind its peers and the GPUs it keeps waiting; the two most costly.",
            "none",
            span=4,
        )
        .decimals(1)
        .thresholds(steps((LATE_COLOUR, None)))
        .no_value("Nobody")
        .with_target(
            instant(
                f"{COSTLIEST} * {RANK} group_left (stage)"
                f" group by (cluster, peer_group, rank, stage) ({LATE})",
                "rank {{rank}} · {{stage}}",
            )
        )
    )


def _since() -> stat.Panel:
    return (
        stat_panel(
            "Late since",
            "When these ranks began to be late, by their nodes' clocks. Only ranks that compare "
            "their steps know it.",
            "dateTimeFromNow",
            span=3,
        )
        .thresholds(steps((LATE_COLOUR, None)))
        .no_value("–")
        .with_target(instant(f"{LATE_SINCE} and {RANK} {COSTLIEST}", "rank {{rank}}"))
    )


def _step_time() -> stat.Panel:
    return (
        stat_panel(
            "Step",
            "Mean time from one release to the next, how many times as long that is as without "
            "the late ranks, and since any rank finished its last step. A step takes every rank "
            "equally long, so it says that the job is slow, never who slows it.",
            "s",
            span=5,
        )
        .no_value("–")
        .with_target(instant(f"job:rankskew_step_seconds:max{{{JOB}}}", "takes", "A"))
        .with_target(instant(f"job:rankskew_slowdown:max{{{JOB}}}", "as long", "B"))
        .with_target(instant(SINCE_LAST_STEP, "since the last", "C"))
        .override_by_query(
            "B",
            [
                Override(id_val="unit", value="suffix:×"),
                Override(id_val="decimals", value=2),
                *coloured_from(1.01, LATE_COLOUR),
            ],
        )
        .override_by_query("C", coloured_from(60, LATE_COLOUR))
    )


def _judged() -> stat.Panel:
    judged = f"job:rankskew_coverage:ratio{{{JOB}}}"
    job = "on (cluster, job_id)"
    by_source = f"{judged} * {job} group_left (source) {SOURCE} or {job} {judged}"
    return (
        stat_panel(
            "Ranks judged",
            "Share of the job's ranks that can be judged, and the reason where they cannot. By "
            "join: the ranks compare their steps one by one. By block: means over half a minute "
            "and more are compared, which shows little but a rank that is late all the time. "
            "Without either, no alert does not mean that nobody is late.",
            "percentunit",
            span=3,
        )
        .thresholds(steps(("orange", None), ("green", 1.0)))
        .no_value("None")
        .with_target(
            instant(
                f'label_replace({by_source}, "by", " by $1", "source", "(.+)")',
                "judged{{by}}",
                "A",
            )
        )
        .with_target(
            instant(f"job_reason:rankskew_not_judgeable:bool{{{JOB}}} == 1", "{{reason}}", "B")
        )
        .override_by_query(
            "B",
            [
                fixed("orange"),
                Override(
                    id_val="mappings",
                    value=[{"type": "value", "options": {"1": {"text": "not judgeable"}}}],
                ),
            ],
        )
    )


def _firing() -> stat.Panel:
    name = f'label_replace({FIRING}, "name", "$1", "alertname", "Rankskew(.*)")'
    return (
        stat_panel(
            "Alerts firing",
            "Alerts of this job that fire now, without their prefix Rankskew. The runbook of each "
            "is linked above.",
            "none",
            span=3,
        )
        .text_mode(BigValueTextMode.NAME)
        .thresholds(steps((LATE_COLOUR, None)))
        .no_value("None")
        .with_target(instant(f"count by (name) ({name})", "{{name}}"))
    )


def _lost_by_kind() -> timeseries.Panel:
    panel = stacked_panel(
        "GPUs lost, by kind of waiting",
        "Late ranks: the same ranks most of the time. No stable leader: another one each step, as "
        "with uneven sequence lengths. Unequal peer groups: a heavier pipeline stage. "
        "Communication: what even the luckiest rank waits. While a job hangs, all its GPUs. Only "
        "ranks that compare their steps tell all of these apart.",
        "none",
        span=12,
        colours=dict(KINDS.values()) | {NOT_TOLD_APART: PEERS_COLOUR},
    )
    for ref, (kind, (legend, _)) in zip("ABCDE", KINDS.items(), strict=True):
        series = f'job_kind:rankskew_gpus_lost:sum{{kind="{kind}",{JOB}}}'
        panel.with_target(query(series, legend, ref))
    lost = f"job:rankskew_gpus_lost:sum{{{JOB}}}"
    by_kind = f"sum by (cluster, job_id) (job_kind:rankskew_gpus_lost:sum{{{JOB}}}) or 0 * {lost}"
    panel.with_target(query(f"{lost} - ({by_kind}) > 0.01", NOT_TOLD_APART, "F"))
    return panel.no_value("No rank of this job can be judged")


def _lost_by_rank_and_stage() -> timeseries.Panel:
    return (
        stacked_panel(
            "GPUs lost, by rank and stage",
            "What each late rank costs, in the stage where it falls behind: its colour is the "
            "stage, as everywhere. Pale: what is lost while another rank is late in each step; "
            "only ranks that compare their steps know it.",
            "none",
            span=12,
            colours={f" {stage}$": colour for stage, colour in STAGE_COLOURS.items()},
        )
        .no_value("Nobody is late")
        .with_target(
            query(
                f"sum by (cluster, rank, stage) ({LOST_BY_STAGE}"
                " and on (cluster, peer_group, rank, stage)"
                f" topk(10, max_over_time({LOST_BY_STAGE}[1h]{AT_END}) > 0.02))",
                "rank {{rank}} {{stage}}",
            )
        )
        .with_target(
            query(
                f"{ROTATING_BY_STAGE} and on (cluster, stage)"
                f" max_over_time({ROTATING_BY_STAGE}[1h]{AT_END}) > 0.02",
                "no stable leader {{stage}}",
                "B",
            )
        )
        .override_by_query("B", [Override(id_val="custom.fillOpacity", value=25)])
    )


def _late_ranks() -> table.Panel:
    both = f'label_join({CAUSE}, "cause", ": ", "cause", "detail")'
    cause = f'label_replace({both}, "cause", "$1", "cause", "(.*): ")'
    panel = (
        table_panel(
            "Late ranks",
            "Every rank that is late: where it runs, in which stage it began to fall behind, how "
            "it is late and by how much of its peers' time, what explains it, what it costs, and "
            "its own work and wait per step against the median of its peers. The late rank works "
            "longest and waits least.",
            "none",
            span=24,
        )
        .height(5)
        .no_value("Nobody is late")
        .with_target(rows(LATE, "A"))
        .with_target(rows(f"sum by (cluster, rank) ({LOST})", "B"))
        .with_target(rows(f"sum by (cluster, rank) ({late_now(busy())})", "C"))
        .with_target(rows(beside_late(peers(busy())), "D"))
        .with_target(rows(f"sum by (cluster, rank) ({late_now(wait())})", "E"))
        .with_target(rows(beside_late(peers(wait())), "F"))
        .with_target(rows(f"min by (cluster, rank) ({late_now(LATE_SINCE)})", "G"))
        .with_target(rows(f"max by (cluster, rank, gpu_uuid) ({late_now(RANK_GPU)})", "H"))
        .with_target(rows(f"max by (cluster, rank, cause) ({cause})", "I"))
    )
    join_rows(
        panel,
        "rank",
        {
            "rank": column("Rank", width=60),
            "instance": column("Node", width=150),
            "stage": column("Late in", width=90),
            "kind": column("How", width=90),
            "Value #A": column("Slower by", "percentunit", decimals=0, width=85),
            "Value #B": column("GPUs lost", "none", decimals=2, colour=LATE_COLOUR, width=85),
            "Value #G": column("Late since", "dateTimeFromNow", width=125),
            "cause": column("Cause", width=180),
            "Value #C": column("Own work", "s", decimals=1, width=85),
            "Value #D": column("Peers' work", "s", decimals=1, width=95),
            "Value #E": column("Wait", "s", decimals=1, width=85),
            "Value #F": column("Peers' wait", "s", decimals=1, width=95),
            "gpu_uuid": column("GPU"),
        },
    )
    return panel
