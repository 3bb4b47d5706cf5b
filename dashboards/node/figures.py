"""The top of the node dashboard: its figures, the ranks on it, and its GPUs."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import stat, table

from dashboards.node.series import FAULT, GPU, HUNG, LATE, LOST, OF_RANK
from dashboards.shared.exporters import seen
from dashboards.shared.panels import (
    LATE_COLOUR,
    Override,
    coloured_from,
    column,
    fixed,
    instant,
    rows,
    shown,
    stat_panel,
    table_panel,
)
from dashboards.shared.states import GREEN, ORANGE
from dashboards.shared.tables import (
    RANK_KEY,
    job_link,
    keyed,
    keyed_table,
    linked,
    marked,
    rank_link,
)
from dashboards.shared.variables import NODE

UP: Final = {"1": ("up", GREEN), "0": ("down", LATE_COLOUR)}
HOLDS: Final = {"1": ("yes", GREEN), "0": ("lost", LATE_COLOUR)}
PRICED: Final = "on (cluster, job_id) group_left () job:rankskew_gpu_hour_price:value"


def figures() -> Sequence[stat.Panel]:
    """Return the row of figures, left to right."""
    return (_gpus_up(), _faults(), _ranks(), _lost(), _exporter())


def tables() -> Sequence[table.Panel]:
    """Return the tables of the ranks and the GPUs on the node."""
    return (_ranks_here(), _gpus())


def _gpus_up() -> stat.Panel:
    up = f"sum(rankskew_gpu_up{{{NODE}}})"
    expected = f"sum(rankskew_gpus_expected{{{NODE}}})"
    return shown(
        stat_panel(
            "GPUs up",
            "GPUs that answer, and GPUs that this node should have: those given by "
            "--gpus.expected, or all that were ever seen on it.",
            "none",
            span=4,
        ).no_value("No GPU is read"),
        (up, "up", []),
        (expected, "expected", []),
        (f"{expected} - {up} > 0", "missing", [fixed(LATE_COLOUR)]),
    )


def _faults() -> stat.Panel:
    gpus = f"group by (fault, gpu_uuid) ({FAULT})"
    none = f"0 * count(rankskew_gpu_up{{{NODE}}}) unless on () count({FAULT})"
    return shown(
        stat_panel(
            "GPUs with faults",
            "GPUs with each kind of fault, as the exporter of the node finds them: lost, memory, "
            "xid in the last ten minutes, a link that is narrow, down or has errors, throttled, a "
            "foreign process, several ranks on one GPU, and so on.",
            "none",
            span=5,
        ).no_value("–"),
        (f"count by (fault) ({gpus})", "{{fault}}", [fixed(LATE_COLOUR)]),
        (none, "of any kind", []),
    )


def _ranks() -> stat.Panel:
    return (
        stat_panel(
            "Ranks here",
            "Ranks on this node that report (beating), do not (silent), or have ended cleanly, "
            "and those that are late now.",
            "none",
            span=5,
        )
        .no_value("No rank reports")
        .with_target(instant(f"sum by (state) (rankskew_node_ranks{{{NODE}}}) > 0", "{{state}}"))
        .with_target(instant(f"count({LATE})", "late", "B"))
        .override_by_query("B", [fixed(LATE_COLOUR)])
        .override_by_name("silent", [fixed(ORANGE)])
    )


def _lost() -> stat.Panel:
    return shown(
        stat_panel(
            "GPUs lost because of this node",
            "GPUs, on all nodes, that do nothing but wait for ranks on this one, and what they "
            "cost in US$ per hour.",
            "none",
            span=5,
        )
        .decimals(1)
        .no_value("None known"),
        (f"sum({LOST} or {HUNG})", "GPUs", coloured_from(0.05, LATE_COLOUR)),
        (
            f"sum(({LOST} or {HUNG}) * {PRICED})",
            "per hour",
            [Override(id_val="unit", value="currencyUSD"), Override(id_val="decimals", value=0)],
        ),
    )


def _exporter() -> stat.Panel:
    exporters = seen(NODE)
    return shown(
        stat_panel(
            "Exporter",
            "Whether the exporter of this node answered the last scrape, and how long ago it read "
            "the GPUs; it does so about once a second.",
            "s",
            span=5,
        ).no_value("Never seen"),
        (
            f"min(up{{{NODE}}} and on (cluster, job, instance) {exporters})",
            "exporter",
            marked(UP)[:1],
        ),
        (
            f"max(time() - rankskew_nvml_sample_timestamp_seconds{{{NODE}}})",
            "since GPUs were read",
            coloured_from(60, LATE_COLOUR),
        ),
    )


def _ranks_here() -> table.Panel:
    on_gpu = f"rankskew_gpu_rank_info{{{GPU}}}"
    ranks = linked(keyed(f"({on_gpu} or {OF_RANK} rankskew_rank_info{{{NODE}}})", RANK_KEY))
    panel = (
        table_panel(
            "Ranks on this node",
            "Each rank with its GPU and process, the stage it is in if it has been there for ten "
            "seconds or more, how late it is and in which stage, the GPUs that wait for it, and "
            "the share of its CPUs that are near its GPU (0.5 if it is not bound, on two NUMA "
            "nodes).",
            "none",
            span=24,
        )
        .height(10)
        .no_value("No rank is seen on this node")
        .with_target(rows(f"group by (key, to_cluster, job_id, rank) ({ranks})"))
        .with_target(rows(f"group by (key, gpu) ({keyed(on_gpu, RANK_KEY)})", "B"))
        .with_target(rows(_of_rank("group", f"rankskew_rank_info{{{NODE}}}", "pid"), "C"))
        .with_target(
            rows(_of_rank("max", f"rankskew_stage_elapsed_seconds{{{NODE}}}", "stage"), "D")
        )
        .with_target(rows(_of_rank("max", _late_in(), "late"), "E"))
        .with_target(rows(_of_rank("sum", LOST), "F"))
        .with_target(rows(_of_rank("max", f"rankskew_rank_numa_local{{{NODE}}}"), "G"))
    )
    fields = {
        "gpu": column("GPU", width=60),
        "rank": [*column("Rank", width=70), rank_link()],
        "job_id": [*column("Job"), job_link()],
        "pid": column("PID", width=100),
        "stage": column("Stage now", width=110),
        "Value #D": column("for", "s", decimals=0, width=90),
        "late": column("Late in", width=110),
        "Value #E": column("Slower by", "percentunit", 0, LATE_COLOUR, width=95),
        "Value #F": column("GPUs lost", "none", 1, LATE_COLOUR, width=95),
        "Value #G": column("CPUs near its GPU", "percentunit", 0, width=150),
    }
    return keyed_table(panel, fields, order="gpu", hidden=("to_cluster",))


def _late_in() -> str:
    return f'label_replace({LATE}, "late", "$1", "stage", "(.+)")'


def _of_rank(operator: str, series: str, label: str = "") -> str:
    labels = f"key, {label}" if label else "key"
    return f"{operator} by ({labels}) ({keyed(series, RANK_KEY)})"


def _gpus() -> table.Panel:
    energy = f"rankskew_gpu_energy_joules_total{{{GPU}}}"
    last = {
        "C": _gauge("utilization_ratio"),
        "D": f"{_gauge('memory_used_bytes')} / {_gauge('memory_total_bytes')}",
        "E": f'rankskew_gpu_temperature_celsius{{sensor="gpu",{GPU}}}',
        "F": _gauge("power_watts"),
        "G": f'rankskew_gpu_clock_hertz{{clock="sm",{GPU}}}',
        "H": _gauge("pcie_link_width"),
        "I": _gauge("pcie_link_width_max"),
        "J": _gauge("pcie_link_generation"),
        "K": _gauge("pcie_link_generation_max"),
        "L": _gauge("foreign_processes"),
        "M": f'rankskew_gpu_ecc_errors_total{{type="uncorrected",{GPU}}}',
        "N": f"sum by (gpu_uuid) ({_gauge('remapped_rows_total')})",
        "O": _gauge("xid_events_total"),
        # Joules to kilowatt hours.
        "P": f"(max_over_time({energy}[$__range]) - min_over_time({energy}[$__range])) / 3.6e6"
        f" and on (cluster, instance, gpu_uuid) {_gauge('up')}",
    }
    panel = (
        table_panel(
            "GPUs",
            "Each GPU with its model and NUMA node, its readings now, the lanes and the "
            "generation of its PCIe link (of what it can do; no generation while it is idle), "
            "processes that do not belong to its rank's job, its errors, and the energy that it "
            "drew in the time range.",
            "none",
            span=24,
        )
        .height(10)
        .no_value("No GPU of this node is read")
        .with_target(rows(f"max by (gpu, gpu_uuid) ({_gauge('up')})", "A"))
        .with_target(rows(f"group by (gpu_uuid, name, numa_node) ({_gauge('info')})", "B"))
    )
    for ref, series in last.items():
        panel.with_target(rows(f"max by (gpu_uuid) ({series})", ref))
    return keyed_table(panel, _gpu_columns(), order="gpu", key="gpu_uuid")


def _gpu_columns() -> dict[str, list[Override]]:
    return {
        "gpu": column("GPU", width=50),
        "name": column("Model"),
        "Value #A": [*column("Up", width=50), *marked(HOLDS)],
        "numa_node": column("NUMA", width=65),
        "Value #C": column("Busy", "percentunit", 0, width=60),
        "Value #D": column("Memory", "percentunit", 0, width=75),
        "Value #E": column("Heat", "celsius", 0, width=70),
        "Value #F": column("Power", "watt", 0, width=75),
        "Value #G": column("SM clock", "hertz", 2, width=90),
        "Value #H": column("Lanes", "none", 0, width=65),
        "Value #I": column("Most", "none", 0, width=55),
        "Value #J": column("Gen", "none", 0, width=50),
        "Value #K": column("Highest", "none", 0, width=75),
        "Value #L": column("Foreign", "none", 0, ORANGE, width=75),
        "Value #M": column("ECC", "none", 0, LATE_COLOUR, width=60),
        "Value #N": column("Rows", "none", 0, width=60),
        "Value #O": column("XID", "none", 0, width=55),
        "Value #P": column("Energy", "kwatth", 2, width=105),
    }


def _gauge(name: str) -> str:
    return f"rankskew_gpu_{name}{{{GPU}}}"
