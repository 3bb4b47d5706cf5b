"""What Rankskew costs its nodes and Prometheus, and which versions of it run."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.shared.exporters import of_exporters, spread
from dashboards.shared.panels import (
    WAIT_COLOUR,
    column,
    drawn,
    rows,
    shades,
    table_panel,
    time_panel,
)
from dashboards.shared.tables import keyed, keyed_table
from dashboards.shared.variables import CLUSTER

NO_RULES: Final = "Prometheus must scrape itself to show this (its own /metrics)"
GROUPS: Final = 'rule_group=~".*;rankskew_.*"'


def exporter_costs() -> Sequence[timeseries.Panel]:
    """Return what the exporters cost their nodes and what they send."""
    cpu = f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval])"
    return (
        spread(
            "Length of a scrape",
            "Time that a scrape of an exporter takes: the longest, and the median of all nodes. "
            "Prometheus gives up after its scrape timeout, 10 s by default.",
            "s",
            of_exporters(f"scrape_duration_seconds{{{CLUSTER}}}"),
            span=6,
        ),
        spread(
            "Series per scrape",
            "Samples that a scrape of an exporter returns: the most, and the median of all nodes. "
            "A node with 8 GPUs and 8 ranks has about 700.",
            "none",
            of_exporters(f"scrape_samples_scraped{{{CLUSTER}}}"),
            span=6,
        ),
        spread(
            "CPUs used by an exporter",
            "CPUs that the exporter's process uses on its node, 1 being a whole one: the highest, "
            "and the median of all nodes.",
            "none",
            of_exporters(cpu),
            span=6,
        ),
        spread(
            "Memory of an exporter",
            "Resident memory of the exporter's process on its node: the highest, and the median "
            "of all nodes.",
            "bytes",
            of_exporters(f"process_resident_memory_bytes{{{CLUSTER}}}"),
            span=6,
        ),
    )


def rule_costs() -> Sequence[timeseries.Panel]:
    """Return what the shipped rules cost Prometheus."""
    return (
        _of_groups(
            "Evaluation of the rules",
            "Time that the last evaluation of each group of rules took. It must stay well below "
            "the group's interval.",
            "s",
            _by_group("last_duration_seconds"),
        ),
        _of_groups(
            "Evaluation, share of the interval",
            "The same as a share of the time between two evaluations. From 1 on, evaluations are "
            "skipped and alerts are late.",
            "percentunit",
            f"{_by_group('last_duration_seconds')} / {_by_group('interval_seconds')}",
        ),
        _of_groups(
            "Series that the rules record",
            "Samples that the last evaluation of each group of rules produced. In large jobs they "
            "are a tenth of what is scraped, or less.",
            "none",
            _by_group("last_evaluation_samples"),
        ),
    )


def versions() -> Sequence[table.Panel]:
    """Return the versions in use, with the number of nodes or ranks that have each."""
    return (
        _versions(
            "Exporter versions",
            "Versions of the exporter and of its Python, with the number of nodes that run each.",
            f"rankskew_exporter_build_info{{{CLUSTER}}}",
            {"version": "Version", "python": "Python"},
            "Nodes",
            span=7,
        ),
        _versions(
            "Driver versions",
            "Versions of the NVIDIA driver and its NVML library, with the number of nodes that "
            "have each.",
            f"rankskew_nvml_info{{{CLUSTER}}}",
            {"driver_version": "Driver", "nvml_version": "NVML"},
            "Nodes",
            span=7,
        ),
        _versions(
            "Probe versions",
            "Versions of the probe and of what it runs in, with the number of ranks that have "
            "each. Within a job all should be the same.",
            f"rankskew_runtime_info{{{CLUSTER}}}",
            {"probe": "Probe", "torch": "torch", "cuda": "CUDA", "nccl": "NCCL"},
            "Ranks",
            span=10,
        ),
    )


def _by_group(name: str) -> str:
    series = f"prometheus_rule_group_{name}"
    # What Prometheus says about itself rarely has a cluster, and a Prometheus may have several.
    either = f'{series}{{{GROUPS},{CLUSTER}}} or {series}{{{GROUPS},cluster=""}}'
    return f'label_replace({either}, "group", "$1", "rule_group", ".*;rankskew_(.*)")'


def _of_groups(title: str, description: str, unit: str, series: str) -> timeseries.Panel:
    return drawn(
        time_panel(title, description, unit, span=8).height(7).no_value(NO_RULES),
        (f"topk(6, {series})", "{{group}}", [shades(WAIT_COLOUR)]),
    )


def _versions(
    title: str, description: str, series: str, labels: dict[str, str], counted: str, span: int
) -> table.Panel:
    names = tuple(labels)
    of_each = f"count by ({', '.join(names)}) ({series})"
    panel = (
        table_panel(title, description, "none", span)
        .no_value("None seen")
        .with_target(rows(keyed(f"({of_each})", names)))
        # With one query alone, Grafana calls its values "Value", with two "Value #A".
        .with_target(rows(f"group by (key) ({keyed(f'({of_each})', names)})", "B"))
    )
    fields = {name: column(words, width=105) for name, words in labels.items()}
    fields["Value #A"] = column(counted, "none", decimals=0)
    return keyed_table(panel, fields, order="Value #A")
