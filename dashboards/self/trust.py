"""Whether what Rankskew says is fresh and complete."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import stat, table, timeseries

from dashboards.shared.exporters import EXPORTERS, TARGET, spread
from dashboards.shared.panels import (
    LATE_COLOUR,
    PEERS_COLOUR,
    POINTS_OF_ALL,
    WAIT_COLOUR,
    Override,
    coloured_from,
    column,
    drawn,
    fixed,
    increase_per_second,
    query,
    rows,
    shades,
    shown,
    stacked_panel,
    stat_panel,
    table_panel,
    time_panel,
)
from dashboards.shared.states import GREEN, ORANGE
from dashboards.shared.tables import keyed, keyed_table, linked, node_link
from dashboards.shared.variables import CLUSTER

COLLECTOR: Final = ("cluster", "instance", "collector")
FAILED: Final = f"rankskew_collector_success{{{CLUSTER}}} == 0"
SAMPLE_AGE: Final = f"time() - rankskew_nvml_sample_timestamp_seconds{{{CLUSTER}}}"
JUDGED: Final = (
    f'group by (cluster, job_id) (rankskew_job_judge_info{{judge="%s",{CLUSTER}}})'
    f" unless on (cluster, job_id) job_reason:rankskew_not_judgeable:bool{{{CLUSTER}}}"
)
BY_NODE: Final = f"({JUDGED % 'node'}) unless on (cluster, job_id) ({JUDGED % 'join'})"
UNJUDGED: Final = (
    f"group by (cluster, job_id) (job_reason:rankskew_not_judgeable:bool{{{CLUSTER}}})"
)


def figures() -> Sequence[stat.Panel]:
    """Return the row of figures, left to right."""
    return (_exporters(), _stale(), _ranks(), _jobs(), _refused())


def freshness() -> Sequence[timeseries.Panel | table.Panel]:
    """Return how old the readings are."""
    return (
        spread(
            "Age of the last GPU reading",
            "Time since the exporter of a node last read its GPUs, by the clocks of the node and "
            "of Prometheus; about a second plus the time since the scrape.",
            "s",
            SAMPLE_AGE,
            span=12,
        ).no_value("No exporter reads GPUs"),
        _failing(),
    )


def coverage() -> Sequence[timeseries.Panel]:
    """Return which ranks report and which jobs are judged."""
    return (_ranks_by_state(), _jobs_by_verdict(), _reasons())


def losses() -> Sequence[timeseries.Panel]:
    """Return what the probes and the exporters could not deliver or understand."""
    return (
        _by_job(
            "Probe errors",
            "Failures inside the probe, per second and job. They never reach training, but what "
            "failed was not measured; the rank's log has the first one.",
            "rankskew_probe_errors_total",
        ),
        _by_job(
            "Dropped steps",
            "Steps per second whose GPU times were discarded, by job, for example because the GPU "
            "was too far behind. They count as steps, but not in the verdict.",
            "rankskew_probe_dropped_steps_total",
        ),
        _by_job(
            "Failed pushes",
            "Snapshots per second that probes could not deliver, by job. The next one contains "
            "the same data, so a few do no harm.",
            "rankskew_probe_push_failures_total",
        ),
        _pushes(),
    )


def _exporters() -> stat.Panel:
    return shown(
        stat_panel(
            "Exporters",
            "Exporters that answered the last scrape, and those that once did and do not now.",
            "none",
            span=5,
        ).no_value("None scraped"),
        (f"count({EXPORTERS} and {TARGET} up == 1)", "up", []),
        (f"count({EXPORTERS} and {TARGET} up == 0)", "down", [fixed(LATE_COLOUR)]),
    )


def _stale() -> stat.Panel:
    return shown(
        stat_panel(
            "Oldest GPU reading",
            "Age of the oldest GPU reading of any exporter that reads GPUs, the number of "
            "collectors that failed at their last run, and of unexpected errors that exporters had "
            "since their start; their logs have the reasons.",
            "s",
            span=5,
        ).no_value("No GPU is read"),
        (f"max({SAMPLE_AGE})", "old", coloured_from(60, ORANGE)),
        (
            f"count({FAILED})",
            "collectors fail",
            [fixed(ORANGE), Override(id_val="unit", value="none")],
        ),
        (
            f"sum(rankskew_exporter_errors_total{{{CLUSTER}}}) > 0",
            "errors",
            [fixed(ORANGE), Override(id_val="unit", value="none")],
        ),
    )


def _ranks() -> stat.Panel:
    return shown(
        stat_panel(
            "Ranks",
            "Ranks that report, that have gone silent, and those of a running job that no "
            "exporter shows.",
            "none",
            span=5,
        ).no_value("No rank reports"),
        (f'sum(rankskew_node_ranks{{state="beating",{CLUSTER}}})', "beating", []),
        (f'sum(rankskew_node_ranks{{state="silent",{CLUSTER}}}) > 0', "silent", [fixed(ORANGE)]),
        (f"sum(job:rankskew_ranks_missing:sum{{{CLUSTER}}})", "missing", [fixed(ORANGE)]),
    )


def _jobs() -> stat.Panel:
    return shown(
        stat_panel(
            "Jobs judged",
            "Jobs that are judged step by step (join), by each node for itself (node), and not at "
            "all.",
            "none",
            span=5,
        ).no_value("No job"),
        (f"count({JUDGED % 'join'})", "by join", []),
        (f"count({BY_NODE})", "by node", []),
        (f"count({UNJUDGED})", "not judged", [fixed(ORANGE)]),
    )


def _refused() -> stat.Panel:
    refused = f'rankskew_ingest_snapshots_total{{result!~"accepted|ignored",{CLUSTER}}}'
    return shown(
        stat_panel(
            "Refused pushes",
            "Snapshots per second that exporters refused, of all probes: not valid, too many, or "
            "not allowed.",
            "suffix:/s",
            span=4,
        ).no_value("None known"),
        (f"sum({increase_per_second(refused)})", "refused", coloured_from(0.001, ORANGE)),
    )


def _ranks_by_state() -> timeseries.Panel:
    ranks = f"sum by (state) (rankskew_node_ranks{{{CLUSTER}}})"
    return drawn(
        stacked_panel(
            "Ranks by state",
            "Ranks that report (beating), that have gone silent, that ended cleanly, and those of "
            "a running job that no exporter shows (missing).",
            "none",
            span=8,
            colours={
                "^beating$": GREEN,
                "^silent$": ORANGE,
                "^finished$": PEERS_COLOUR,
                "^missing$": LATE_COLOUR,
            },
        )
        .decimals(0)
        .no_value("No rank reports"),
        (ranks, "{{state}}", []),
        (f"sum(job:rankskew_ranks_missing:sum{{{CLUSTER}}})", "missing", []),
    )


def _jobs_by_verdict() -> timeseries.Panel:
    return drawn(
        stacked_panel(
            "Jobs by verdict",
            "Jobs that are judged step by step (join), by means over half a minute or more of the "
            "ranks on each node (node), or not at all.",
            "none",
            span=8,
            colours={"^join$": GREEN, "^node$": WAIT_COLOUR, "^not judged$": ORANGE},
        )
        .decimals(0)
        .no_value("No job"),
        (f"count({JUDGED % 'join'})", "join", []),
        (f"count({BY_NODE})", "node", []),
        (f"count({UNJUDGED})", "not judged", []),
    )


def _reasons() -> timeseries.Panel:
    reasons = f"job_reason:rankskew_not_judgeable:bool{{{CLUSTER}}}"
    return drawn(
        time_panel(
            "Why jobs are not judged",
            "Number of jobs with each reason why they cannot be judged; a job may have several. "
            "The runbook of RankskewNotJudgeable explains them.",
            "none",
            span=8,
        )
        .decimals(0)
        .no_value("No unjudged job is known"),
        (f"count by (reason) ({reasons})", "{{reason}}", [shades(ORANGE)]),
    )


def _failing() -> table.Panel:
    since = (
        f"1000 * rankskew_collector_last_success_timestamp_seconds{{{CLUSTER}}}"
        f" and on (cluster, instance, collector) {FAILED}"
    )
    panel = (
        table_panel(
            "Collectors that fail",
            "Collectors whose latest run failed, so that their series are missing, and when they "
            "last succeeded, if ever. The exporter's log has the reason.",
            "none",
            span=12,
        )
        .height(7)
        .no_value("No failure is known")
        .with_target(rows(linked(keyed(f"({FAILED})", COLLECTOR)), "A"))
        .with_target(rows(f"max by (key) ({keyed(f'({since})', COLLECTOR)})", "B"))
    )
    fields = {
        "instance": [*column("Node", width=200), node_link()],
        "collector": column("Collector"),
        "Value #B": column("Last success", "dateTimeFromNow", width=150),
    }
    return keyed_table(panel, fields, order="Value #A", hidden=("to_cluster",))


def _by_job(title: str, description: str, counter: str) -> timeseries.Panel:
    counted = increase_per_second(f"{counter}{{{CLUSTER}}}")
    return drawn(
        time_panel(title, description, "suffix:/s", span=6)
        .height(7)
        .no_value("None known")
        # These read every rank at every point.
        .max_data_points(POINTS_OF_ALL),
        (f"topk(10, sum by (cluster, job_id) ({counted}))", "{{job_id}}", [shades(ORANGE)]),
    )


def _pushes() -> timeseries.Panel:
    pushed = increase_per_second(f"rankskew_ingest_snapshots_total{{{CLUSTER}}}")
    unknown = increase_per_second(f"rankskew_ingest_unknown_fields_total{{{CLUSTER}}}")
    return (
        time_panel(
            "Pushes by result",
            "Snapshots that reach the exporters, per second and result, and fields that were "
            "ignored because an exporter is older than a probe.",
            "suffix:/s",
            span=6,
        )
        .height(7)
        .no_value("No probe pushes")
        .with_target(query(f"sum by (result) ({pushed})", "{{result}}"))
        .with_target(query(f"sum({unknown})", "unknown fields", "B"))
        .override_by_query("A", [shades(ORANGE)])
        .override_by_name("accepted", [fixed(GREEN)])
        .override_by_query("B", [fixed(PEERS_COLOUR)])
    )
