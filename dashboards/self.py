"""The dashboard of Rankskew itself: whether it can be trusted now, and what it costs."""

from typing import Any, Final

from dashboards.board import CLUSTER, board
from dashboards.panels import (
    GREEN,
    LATE_COLOUR,
    NODE_LINK,
    ORANGE,
    PEERS_COLOUR,
    POINTS_OF_ALL,
    WAIT_COLOUR,
    Panel,
    coloured_from,
    column,
    fixed,
    keyed,
    linked,
    shades,
    stat,
    table,
    timeseries,
)
from dashboards.shared_panels import EXPORTERS, increase_per_second

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
RANKS: Final = f"rankskew_node_ranks{{{CLUSTER}}}"
IN_STATE: Final = f'rankskew_node_ranks{{state="%s",{CLUSTER}}}'
MISSING: Final = f"sum(job:rankskew_ranks_missing:sum{{{CLUSTER}}})"
PUSHED: Final = f"rankskew_ingest_snapshots_total{{%s{CLUSTER}}}"
COUNT: Final = {"unit": "none"}


def self_dashboard() -> dict[str, Any]:
    """Return the dashboard of the exporters, the probes and the rules."""
    return board(
        "self",
        "Rankskew itself: is what it says fresh and complete, and what does that cost.",
        CLUSTER,
        [],
        _figures(),
        {
            "Freshness": [
                _spread(
                    "Age of the last GPU reading",
                    "Time since the exporter of a node last read its GPUs, by the clocks of the "
                    "node and of Prometheus; about a second plus the time since the scrape.",
                    "s",
                    SAMPLE_AGE,
                    12,
                    empty="No exporter reads GPUs",
                ),
                _failing(),
            ],
            "Coverage": [*_coverage(), _losses()],
            "Cost of the exporters": _exporter_costs(),
        },
    )


def _figures() -> list[Panel]:
    refused = increase_per_second(PUSHED % 'result!~"accepted|ignored",')
    return [
        stat(
            "Exporters",
            "Exporters that answered the last scrape, and those that once did and do not now.",
            "none",
            5,
            (f"count({EXPORTERS} and {TARGET} up == 1)", "up"),
            (f"count({EXPORTERS} and {TARGET} up == 0)", "down", fixed(LATE_COLOUR)),
            empty="None scraped",
        ),
        stat(
            "Oldest GPU reading",
            "Age of the oldest GPU reading of any exporter that reads GPUs, the number of "
            "collectors that failed at their last run, and of unexpected errors that exporters had "
            "since their start; their logs have the reasons.",
            "s",
            5,
            (f"max({SAMPLE_AGE})", "old", coloured_from(60, ORANGE)),
            (f"count({FAILED})", "collectors fail", fixed(ORANGE), COUNT),
            (
                f"sum(rankskew_exporter_errors_total{{{CLUSTER}}}) > 0",
                "errors",
                fixed(ORANGE),
                COUNT,
            ),
            empty="No GPU is read",
        ),
        stat(
            "Ranks",
            "Ranks that report, that have gone silent, and those of a running job that no "
            "exporter shows.",
            "none",
            5,
            (f"sum({IN_STATE % 'beating'})", "beating"),
            (f"sum({IN_STATE % 'silent'}) > 0", "silent", fixed(ORANGE)),
            (MISSING, "missing", fixed(ORANGE)),
            empty="No rank reports",
        ),
        stat(
            "Jobs judged",
            "Jobs that are judged step by step (join), by each node for itself (node), and not at "
            "all.",
            "none",
            5,
            (f"count({JUDGED % 'join'})", "by join"),
            (f"count({BY_NODE})", "by node"),
            (f"count({UNJUDGED})", "not judged", fixed(ORANGE)),
            empty="No job",
        ),
        stat(
            "Refused pushes",
            "Snapshots per second that exporters refused, of all probes: not valid, too many, or "
            "not allowed.",
            "suffix:/s",
            4,
            (f"sum({refused})", "refused", coloured_from(0.001, ORANGE)),
            empty="None known",
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
        12,
        [
            linked(keyed(f"({FAILED})", collector)),
            f"max by (key) ({keyed(f'({since})', collector)})",
        ],
        {
            "instance": column("Node", width=200) | NODE_LINK,
            "collector": column("Collector"),
            "Value #B": column("Last success", "dateTimeFromNow", width=150),
        },
        order="Value #A",
        hidden=("to_cluster",),
        height=7,
        empty="No failure is known",
    )


def _coverage() -> list[Panel]:
    return [
        timeseries(
            "Ranks by state",
            "Ranks that report (beating), that have gone silent, that ended cleanly, and those of "
            "a running job that no exporter shows (missing).",
            "none",
            8,
            (f"sum by (state) ({RANKS})", "{{state}}"),
            (MISSING, "missing"),
            stack={
                "^beating$": GREEN,
                "^silent$": ORANGE,
                "^finished$": PEERS_COLOUR,
                "^missing$": LATE_COLOUR,
            },
            decimals=0,
            empty="No rank reports",
        ),
        timeseries(
            "Jobs by verdict",
            "Jobs that are judged step by step (join), by means over half a minute or more of the "
            "ranks on each node (node), or not at all.",
            "none",
            8,
            (f"count({JUDGED % 'join'})", "join"),
            (f"count({BY_NODE})", "node"),
            (f"count({UNJUDGED})", "not judged"),
            stack={"^join$": GREEN, "^node$": WAIT_COLOUR, "^not judged$": ORANGE},
            decimals=0,
            empty="No job",
        ),
        timeseries(
            "Why jobs are not judged",
            "Number of jobs with each reason why they cannot be judged; a job may have several. "
            "The runbook of RankskewNotJudgeable explains them.",
            "none",
            8,
            (f"count by (reason) ({REASONS})", "{{reason}}", shades(ORANGE)),
            decimals=0,
            empty="No unjudged job is known",
        ),
    ]


def _losses() -> Panel:
    counters = {
        "probe errors": f"rankskew_probe_errors_total{{{CLUSTER}}}",
        "dropped steps": f"rankskew_probe_dropped_steps_total{{{CLUSTER}}}",
        "failed pushes": f"rankskew_probe_push_failures_total{{{CLUSTER}}}",
        "unknown fields": f"rankskew_ingest_unknown_fields_total{{{CLUSTER}}}",
    }
    return timeseries(
        "Lost on the way",
        "Per second, by job: failures inside the probe, which never reach training; steps whose "
        "GPU times were discarded; snapshots that probes could not deliver, whose data the next "
        "one has; and, of all jobs, fields that an exporter older than the probe ignored.",
        "suffix:/s",
        24,
        *(
            (
                f"topk(10, sum by (cluster, job_id) ({increase_per_second(counter)}))",
                f"{{{{job_id}}}} {what}",
                shades(ORANGE),
            )
            for what, counter in counters.items()
        ),
        points=POINTS_OF_ALL,  # It reads every rank at every point.
        height=7,
        empty="None known",
    )


def _exporter_costs() -> list[Panel]:
    rows = (
        (
            "Length of a scrape",
            "Time that a scrape of an exporter takes: the longest, and the median of all nodes. "
            "Prometheus gives up after its scrape timeout, 10 s by default.",
            "s",
            f"scrape_duration_seconds{{{CLUSTER}}}",
        ),
        (
            "Series per scrape",
            "Samples that a scrape of an exporter returns: the most, and the median of all nodes. "
            "A node with 8 GPUs and 8 ranks has about 700.",
            "none",
            f"scrape_samples_scraped{{{CLUSTER}}}",
        ),
        (
            "CPUs used by an exporter",
            "CPUs that the exporter's process uses on its node, 1 being a whole one: the highest, "
            "and the median of all nodes.",
            "none",
            f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])",
        ),
        (
            "Memory of an exporter",
            "Resident memory of the exporter's process on its node: the highest, and the median "
            "of all nodes.",
            "bytes",
            f"process_resident_memory_bytes{{{CLUSTER}}}",
        ),
    )
    # Any target may have these series.
    exporters = f"{TARGET} rankskew_exporter_build_info{{{CLUSTER}}}"
    return [
        _spread(title, text, unit, f"{series} and {exporters}", 6)
        for title, text, unit, series in rows
    ]


def _spread(
    title: str, text: str, unit: str, series: str, span: int, empty: str | None = None
) -> Panel:
    """Return the largest and the median of *series*, which has one value per node."""
    return timeseries(
        title,
        text,
        unit,
        span,
        (f"max({series})", "highest", fixed(WAIT_COLOUR)),
        (f"quantile(0.5, {series})", "median", fixed(PEERS_COLOUR)),
        height=7,
        empty=empty,
    )
