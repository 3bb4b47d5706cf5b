"""The tables of nodes with trouble and of firing alerts."""

from typing import Final

from grafana_foundation_sdk.builders import table

from dashboards.fleet.series import JOB, LATE, RANK_LOST, SUSPECT, WORLD
from dashboards.shared.board import firing
from dashboards.shared.exporters import EXPORTERS
from dashboards.shared.links import FIELD, to_runbook
from dashboards.shared.panels import LATE_COLOUR, Override, column, rows, table_panel
from dashboards.shared.tables import (
    NODE_KEY,
    SEVERITIES,
    job_link,
    keyed,
    keyed_table,
    linked,
    marked,
    node_link,
)
from dashboards.shared.variables import CLUSTER

NODE: Final = "by (cluster, instance)"
DOWN: Final = f"count {NODE} ({EXPORTERS} and on (cluster, job, instance) up == 0)"
# While a job hangs, all its GPUs wait for the rank that is suspected.
HUNG: Final = f"max by (cluster, job_id, instance) ({SUSPECT}) * {JOB} group_left () {WORLD}"
LOST: Final = f"sum {NODE} ({RANK_LOST} or {HUNG})"
LATE_RANKS: Final = f"count {NODE} ({LATE})"
GPU_DOWN: Final = 'fault="lost"'
# Errors that programs cause, or that the GPU has repaired itself, are no trouble of a node.
HARDWARE_XID: Final = 'detail!~"13|31|43|45|68|109|63|92"'
WITHOUT_GPU: Final = "memory|nvlink|nvlink_errors|recovery|pcie_link|pcie_errors|pstate"
NODE_INCIDENTS: Final = "node:rankskew_incident_gpu_seconds:sum1h"
WEEKS: Final = "4w"
ALERT_KEY: Final = ("alertname", "severity", "cluster", "job_id", "rank", "instance")


def nodes() -> table.Panel:
    """Return one row for each node with trouble."""
    panel = (
        table_panel(
            "Nodes with trouble",
            "Nodes whose exporter does not answer, whose GPUs are down, throttled or faulty, or "
            "with late ranks, worst first. GPUs lost are all GPUs that wait for ranks on this "
            "node. XID errors and faults are GPUs with them; errors of programs do not count.",
            "none",
            span=13,
        )
        .height(9)
        .no_value("No node is known to have trouble")
        .with_target(rows(linked(keyed(f"({_order()})", NODE_KEY)), "A"))
        .with_target(rows(_of_node(DOWN), "B"))
        .with_target(rows(_of_node(LOST), "C"))
        .with_target(rows(_of_node(LATE_RANKS), "D"))
        .with_target(rows(_of_node(_faulty(GPU_DOWN)), "E"))
        .with_target(rows(_of_node(_faulty('fault="throttled"')), "F"))
        .with_target(rows(_of_node(_faulty(f'fault="xid",{HARDWARE_XID}')), "G"))
        .with_target(rows(_of_node(_faulty(f'fault=~"{WITHOUT_GPU}"')), "H"))
    )
    down = {"type": "value", "options": {"1": {"text": "down", "color": "orange"}}}
    fields = {
        "instance": [*column("Node"), node_link()],
        "Value #B": [
            *column("Exporter", width=85),
            Override(id_val="mappings", value=[down]),
            Override(id_val="custom.cellOptions", value={"type": "color-text"}),
        ],
        "Value #C": column("GPUs lost", "none", decimals=1, colour=LATE_COLOUR, width=85),
        "Value #D": column("Late ranks", "none", decimals=0, width=85),
        "Value #E": column("GPUs down", "none", decimals=0, colour=LATE_COLOUR, width=90),
        "Value #F": column("Throttled", "none", decimals=0, width=80),
        "Value #G": column("XID", "none", decimals=0, width=50),
        "Value #H": column("Other faults", "none", decimals=0, width=95),
    }
    return keyed_table(panel, fields, order="Value #A", hidden=("to_cluster",))


def past() -> table.Panel:
    """Return one row for each node that jobs waited for most in the last weeks."""
    lost = f"{NODE_INCIDENTS}{{{CLUSTER}}}[{WEEKS}]"
    used = f"node:rankskew_used_gpu_seconds:sum1h{{{CLUSTER}}}[{WEEKS}]"
    hours = f"sum {NODE} (sum_over_time({lost})) / 3600"
    jobs = f"count {NODE} (count by (cluster, instance, job_id) (last_over_time({lost})))"
    panel = (
        table_panel(
            "Nodes that jobs waited for, four weeks",
            "GPU-hours that GPUs waited for late ranks of a node, those of the largest loss first, "
            "in how many jobs, and per GPU-hour that jobs had of it. Recorded once an hour.",
            "none",
            span=24,
        )
        .height(8)
        .no_value("Nothing was recorded")
        .with_target(rows(linked(keyed(f"(topk(10, {hours}))", NODE_KEY)), "A"))
        .with_target(rows(_of_node(f"({jobs})"), "B"))
        .with_target(rows(_of_node(f"(sum {NODE} (sum_over_time({used})) / 3600)"), "C"))
        .with_target(
            rows(
                _of_node(f"({hours} / (sum {NODE} (sum_over_time({used})) / 3600))"),
                "D",
            )
        )
    )
    fields = {
        "instance": [*column("Node"), node_link()],
        "Value #A": column("GPU-hours lost", "none", decimals=1, colour=LATE_COLOUR),
        "Value #B": column("Jobs", "none", decimals=0),
        "Value #C": column("GPU-hours used", "none", decimals=0),
        "Value #D": column("Lost per GPU-hour used", "none", decimals=2),
    }
    return keyed_table(panel, fields, order="Value #A", hidden=("to_cluster",))


def _of_node(series: str) -> str:
    return f"max by (key) ({keyed(series, NODE_KEY)})"


def _faulty(selector: str) -> str:
    faults = f"rankskew_gpu_fault{{{selector},{CLUSTER}}}"
    return f"count {NODE} (group by (cluster, instance, gpu_uuid) ({faults}))"


def _order() -> str:
    parts = (
        f"1e6 * {DOWN}",
        f"1e4 * {_faulty(GPU_DOWN)}",
        f"10 * {LOST}",
        LATE_RANKS,
        _faulty(f'fault="xid",{HARDWARE_XID}'),
        _faulty(f'fault=~"throttled|{WITHOUT_GPU}"'),
    )
    # Each with a label of its own: otherwise only the first of a node would count.
    own = (f'label_replace({part}, "part", "{n}", "", "")' for n, part in enumerate(parts))
    return f"sum {NODE} ({' or '.join(own)})"


def alerts() -> table.Panel:
    """Return one row for each firing alert."""
    since = f"ALERTS_FOR_STATE{{{CLUSTER}}} and ignoring (alertstate) {firing(CLUSTER)}"
    labels = ", ".join(ALERT_KEY)
    ordered = " or ".join(
        f"{weight} * max by ({labels}) ({_of(severity)})"
        for weight, severity in enumerate(reversed(SEVERITIES), start=1)
    )
    panel = (
        table_panel(
            "Alerts firing",
            "Every firing alert, the most severe first, since when its condition holds, and what "
            "it is about. A click on its name opens the runbook.",
            "none",
            span=11,
        )
        .height(9)
        .no_value("No alert fires")
        .with_target(rows(linked(keyed(_short(f"({ordered})"), ALERT_KEY)), "A"))
        .with_target(rows(f"1000 * max by (key) ({keyed(f'({since})', ALERT_KEY)})", "B"))
    )
    fields = {
        "severity": [*column("Severity", width=75), *marked(SEVERITIES)],
        "name": [*column("Alert"), to_runbook(FIELD % "alertname")],
        "job_id": [*column("Job", width=110), job_link()],
        "rank": column("Rank", width=55),
        "instance": [*column("Node", width=115), node_link()],
        "Value #B": column("Since", "dateTimeFromNow", width=115),
    }
    return keyed_table(panel, fields, order="Value #A", hidden=("alertname", "to_cluster"))


def _short(alerts: str) -> str:
    return f'label_replace({alerts}, "name", "$1", "alertname", "Rankskew(.*)")'


def _of(severity: str) -> str:
    return firing(f'severity="{severity}",{CLUSTER}')
