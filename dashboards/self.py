"""The dashboard of Rankskew itself: whether it can be trusted now, and what it costs."""

from typing import Any, Final

from dashboards import links
from dashboards.board import CLUSTER, board
from dashboards.panels import (
    BLUE,
    GREY,
    ORANGE,
    POINTS_OF_ALL,
    RED,
    Panel,
    coloured_from,
    column,
    shades,
    stat,
    table,
    timeseries,
)
from dashboards.shared_panels import EXPORTERS, increase

TARGET: Final = "on (cluster, job, instance)"
ON_JOB: Final = "on (cluster, job_id)"
FAILED: Final = f"rankskew_collector_success{{{CLUSTER}}} == 0"
SAMPLE_AGE: Final = f"time() - rankskew_nvml_sample_timestamp_seconds{{{CLUSTER}}}"
REASONS: Final = f"job_reason:rankskew_not_judgeable:bool{{{CLUSTER}}}"
JUDGED: Final = (
    f'group by (cluster, job_id) (rankskew_job_judge_info{{judge="%s",{CLUSTER}}})'
    f" unless {ON_JOB} {REASONS}"
)
BY_NODE: Final = f"({JUDGED % 'node'}) unless {ON_JOB} ({JUDGED % 'join'})"
UNJUDGED: Final = f"group by (cluster, job_id) ({REASONS})"
REFUSED: Final = 'result!~"accepted|ignored"'
COUNT: Final = {"unit": "none"}


def self_dashboard() -> dict[str, Any]:
    """Return the dashboard of the exporters, the probes and the rules."""
    return board(
        "self",
        "Rankskew itself: is what it says fresh and complete, and what does that cost.",
        CLUSTER,
        [],
        [_figures()],
        {
            "Freshness and coverage": [[_failing(), _unjudged()], [_losses()]],
            "Cost of the exporters": [[_spread(*row) for row in COSTS]],
        },
    )


def _figures() -> list[Panel]:
    return [
        stat(
            "Exporters",
            "Exporters that answered the last scrape, and those that once did and do not now.",
            "none",
            (f"count({EXPORTERS} and {TARGET} up == 1)", "up"),
            (f"count({EXPORTERS} and {TARGET} up == 0)", "down", RED),
            empty="None scraped",
        ),
        stat(
            "Oldest GPU reading",
            "Age of the oldest GPU reading of any exporter that reads GPUs, the number of "
            "collectors that failed at their last run, and of unexpected errors that exporters had "
            "since their start; their logs have the reasons.",
            "s",
            (f"max({SAMPLE_AGE})", "old", coloured_from(60, ORANGE)),
            (f"count({FAILED})", "collectors fail", ORANGE, COUNT),
            (f"sum(rankskew_exporter_errors_total{{{CLUSTER}}}) > 0", "errors", ORANGE, COUNT),
            empty="No GPU is read",
        ),
        stat(
            "Jobs judged",
            "Jobs that are judged step by step (join), by each node for itself (node), and not at "
            "all.",
            "none",
            (f"count({JUDGED % 'join'})", "by join"),
            (f"count({BY_NODE})", "by node"),
            (f"count({UNJUDGED})", "not judged", ORANGE),
            empty="No job",
        ),
    ]


def _failing() -> Panel:
    collector = ("cluster", "instance", "collector")
    since = (
        f"1000 * rankskew_collector_last_success_timestamp_seconds{{{CLUSTER}}}"
        f" and on (cluster, instance, collector) {FAILED}"
    )
    return table(
        "Collectors that fail",
        "Collectors whose latest run failed, so that their series are missing, and when they "
        "last succeeded, if ever. The exporter's log has the reason.",
        [links.linked(FAILED, collector), links.keyed(f"({since})", collector)],
        {
            "instance": column("Node", width=200) | links.NODE,
            "collector": column("Collector"),
            "Value #B": column("Last success", "dateTimeFromNow", width=150),
        },
        order="Value #A",
        hidden=("to_cluster",),
        height=7,
        empty="No failure is known",
    )


def _unjudged() -> Panel:
    return timeseries(
        "Why jobs are not judged",
        "Number of jobs with each reason why they cannot be judged; a job may have several. "
        "The runbook of RankskewNotJudgeable explains them.",
        "none",
        (f"count by (reason) ({REASONS})", "{{reason}}", shades(ORANGE)),
        decimals=0,
        height=7,
        empty="No unjudged job is known",
    )


def _losses() -> Panel:
    counters = {
        "probe errors": f"rankskew_probe_errors_total{{{CLUSTER}}}",
        "dropped steps": f"rankskew_probe_dropped_steps_total{{{CLUSTER}}}",
        "refused pushes": f"rankskew_ingest_snapshots_total{{{REFUSED},{CLUSTER}}}",
        "failed pushes": f"rankskew_probe_push_failures_total{{{CLUSTER}}}",
        "unknown fields": f"rankskew_ingest_unknown_fields_total{{{CLUSTER}}}",
    }
    return timeseries(
        "Lost on the way",
        "As they occur, by job: failures inside the probe, which never reach training; steps whose "
        "GPU times were discarded; snapshots that probes could not deliver, whose data the next "
        "one has; and, of all jobs, snapshots that exporters refused, and fields that an exporter "
        "older than the probe ignored.",
        "none",
        *(
            (
                f"topk(10, sum by (cluster, job_id) ({increase(counter)}))",
                f"{{{{job_id}}}} {what}",
                shades(ORANGE),
            )
            for what, counter in counters.items()
        ),
        points=POINTS_OF_ALL,  # It reads every rank at every point.
        height=7,
        empty="None known",
    )


# Title, what it shows, unit, and the series, of which each target has one.
COSTS: Final = (
    (
        "Length of a scrape",
        "How long a scrape takes. Prometheus gives up after its timeout, 10 s by default.",
        "s",
        f"scrape_duration_seconds{{{CLUSTER}}}",
    ),
    (
        "Series per scrape",
        "Samples that a scrape returns. A node with 8 GPUs and 8 ranks has about 700.",
        "none",
        f"scrape_samples_scraped{{{CLUSTER}}}",
    ),
    (
        "CPUs used by an exporter",
        "CPUs that the process of an exporter uses, 1 being a whole one.",
        "none",
        f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])",
    ),
    (
        "Memory of an exporter",
        "Resident memory of the process of an exporter.",
        "bytes",
        f"process_resident_memory_bytes{{{CLUSTER}}}",
    ),
)


def _spread(title: str, text: str, unit: str, series: str) -> Panel:
    """Return the largest and the median of *series* over the exporters."""
    # Any target may have such series.
    of_exporters = f"{series} and {TARGET} rankskew_exporter_build_info{{{CLUSTER}}}"
    return timeseries(
        title,
        f"{text} The highest, and the median of all nodes.",
        unit,
        (f"max({of_exporters})", "highest", BLUE),
        (f"quantile(0.5, {of_exporters})", "median", GREY),
        height=7,
    )
