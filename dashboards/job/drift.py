"""The job dashboard's row on whether all ranks run the same software in the same way."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.shared.panels import column, query, rows, stacked_panel, table_panel
from dashboards.shared.tables import keyed_table
from dashboards.shared.variables import JOB

RUNTIMES: Final = f"job_runtime:rankskew_ranks:count{{{JOB}}}"
UNKNOWN: Final = "No rank reports its versions"


def drift_panels() -> Sequence[timeseries.Panel | table.Panel]:
    """Return the panels on versions, settings and numbers of GPUs."""
    return (_over_time(), _versions())


def _over_time() -> timeseries.Panel:
    return (
        stacked_panel(
            "Ranks by runtime",
            "Ranks with the same versions, environment variables of NCCL and torch (as a hash) "
            "and number of GPUs. One colour: all are alike. Two after a restart: a node was left "
            "out of an upgrade.",
            "none",
            span=10,
            colours={},
        )
        .decimals(0)
        .no_value(UNKNOWN)
        .with_target(
            query(
                f"topk(10, {RUNTIMES})",
                "torch {{torch}} · driver {{driver}} · env {{env_hash}} · {{device_count}} GPUs",
            )
        )
    )


def _versions() -> table.Panel:
    panel = (
        table_panel(
            "Runtimes",
            "Every kind of rank now: its versions, the hash of its environment, the GPUs that "
            "its process sees, and how many ranks are like that.",
            "none",
            span=14,
        )
        .height(8)
        .no_value(UNKNOWN)
        .with_target(rows(RUNTIMES, "A"))
    )
    return keyed_table(
        panel,
        {
            "Value": column("Ranks", "none", decimals=0, width=70),
            # Grafana calls the value of a single query either of these.
            "Value #A": column("Ranks", "none", decimals=0, width=70),
            "torch": column("torch", "string", width=90),
            "cuda": column("CUDA", "string", width=80),
            "nccl": column("NCCL", "string", width=90),
            "python": column("Python", "string", width=90),
            "driver": column("Driver", "string", width=90),
            "env_hash": column("Environment", "string", width=110),
            "device_count": column("GPUs"),
        },
        order="Value #A",
        key="env_hash",
    )
