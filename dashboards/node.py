"""The node dashboard: its GPUs, the ranks on it, and its host."""

from typing import Any, Final

from dashboards import links
from dashboards.board import ALL, NODE, NUMERICAL, board, variable
from dashboards.panels import (
    AS_TEXT,
    BLUE,
    GREEN,
    ORANGE,
    RED,
    STAGE_COLOURS,
    Panel,
    coloured_from,
    column,
    fixed,
    line,
    marked,
    shades,
    stat,
    table,
    timeseries,
)
from dashboards.shared_panels import increase, seen

GPU: Final = f'{NODE},gpu=~"$gpu"'
OF_RANK: Final = "on (cluster, job_id, rank)"
ON_JOB: Final = "on (cluster, job_id)"

UP: Final = f"rankskew_gpu_up{{{NODE}}}"
LATE: Final = f"rank:rankskew_late:ratio{{{NODE}}}"
LOST: Final = f"rank:rankskew_gpus_lost:sum{{{NODE}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{NODE}}}"
# While a job hangs, all its GPUs wait for the rank that is suspected.
HUNG: Final = (
    f"max by (cluster, job_id, instance) ({SUSPECT})"
    f" * {ON_JOB} group_left () job:rankskew_world_size:max"
)
FAULT: Final = f"rankskew_gpu_fault{{{NODE}}}"
PRICED: Final = f"{ON_JOB} group_left () job:rankskew_gpu_hour_price:value"
DATA: Final = STAGE_COLOURS["data"]


def node_dashboard() -> dict[str, Any]:
    """Return the dashboard of one node."""
    nodes = 'label_values(rankskew_exporter_build_info{cluster=~"$cluster"}, instance)'
    return board(
        "node",
        "One node: its GPUs, the ranks on it, its links, its errors and its host.",
        NODE,
        [
            variable("instance", "Node", nodes),
            # All also matches a GPU that is expected but no longer listed: its label is empty.
            variable("gpu", "GPU", f"label_values({UP}, gpu)", sort=NUMERICAL, multi=True, **ALL),
        ],
        [_figures(), [_ranks_here()], [_gpus()]],
        {"Throttling and errors": [[_throttled(), _errors()]], "Host": [_host()]},
    )


def _figures() -> list[Panel]:
    expected = f"sum(rankskew_gpus_expected{{{NODE}}})"
    up = f"up{{{NODE}}} and on (cluster, job, instance) {seen(NODE)}"
    sampled = f"rankskew_nvml_sample_timestamp_seconds{{{NODE}}}"
    gpus = f"group by (fault, gpu_uuid) ({FAULT})"
    return [
        stat(
            "GPUs up",
            "GPUs that answer, and GPUs that this node should have: those given by "
            "--gpus.expected, or all that were ever seen on it.",
            "none",
            (f"sum({UP})", "up"),
            (expected, "expected"),
            (f"{expected} - sum({UP}) > 0", "missing", RED),
            empty="No GPU is read",
        ),
        stat(
            "GPUs with faults",
            "GPUs with each kind of fault: lost, memory, xid in the last ten minutes, a link that "
            "is narrow, down or has errors, throttled, a foreign process, and so on.",
            "none",
            (f"count by (fault) ({gpus})", "{{fault}}", RED),
            (f"0 * count({UP}) unless on () count({FAULT})", "of any kind"),
            empty="–",
        ),
        stat(
            "Ranks here",
            "Ranks on this node that report (beating), do not (silent), or have ended cleanly, "
            "and those that are late now.",
            "none",
            (f"sum by (state) (rankskew_node_ranks{{{NODE}}}) > 0", "{{state}}"),
            (f"count({LATE})", "late", RED),
            by_name={"silent": fixed(ORANGE)},
            empty="No rank reports",
        ),
        stat(
            "GPUs lost to this node",
            "GPUs, on all nodes, that do nothing but wait for ranks on this one, and what they "
            "cost in US$ per hour.",
            "none",
            (f"sum({LOST} or {HUNG})", "GPUs", coloured_from(0.05, RED)),
            (f"sum(({LOST} or {HUNG}) * {PRICED})", "per hour", {"unit": "currencyUSD"}),
            decimals=1,
            empty="None known",
        ),
        stat(
            "Exporter",
            "Whether the exporter of this node answered the last scrape, and how long ago it read "
            "the GPUs; it does so about once a second.",
            "s",
            (f"min({up})", "exporter", marked({"1": ("up", GREEN), "0": ("down", RED)})),
            (f"max(time() - {sampled})", "since GPUs were read", coloured_from(60, RED)),
            empty="Never seen",
        ),
    ]


def _ranks_here() -> Panel:
    on_gpu = f"rankskew_gpu_rank_info{{{GPU}}}"
    info = f"rankskew_rank_info{{{NODE}}}"
    elapsed = f"rankskew_stage_elapsed_seconds{{{NODE}}}"
    late_in = f'label_replace({LATE}, "late", "$1", "stage", "(.+)")'
    ranks = links.linked(
        f"{on_gpu} or {OF_RANK} ({info} unless {OF_RANK} rankskew_gpu_rank_info{{{NODE}}})",
        links.RANK_KEY,
    )
    return table(
        "Ranks on this node",
        "Each rank with its GPU and process, the stage it is in if it has been there for ten "
        "seconds or more, how late it is and in which stage, the GPUs that wait for it, and the "
        "share of its CPUs that are near its GPU (0.5 if it is not bound, on two NUMA nodes).",
        [
            f"group by (key, to_cluster, job_id, rank) ({ranks})",
            links.keyed(on_gpu, links.RANK_KEY, "gpu"),
            links.keyed(info, links.RANK_KEY, "pid"),
            links.keyed(elapsed, links.RANK_KEY, "stage"),
            links.keyed(late_in, links.RANK_KEY, "late"),
            links.keyed(LOST, links.RANK_KEY),
            links.keyed(f"rankskew_rank_numa_local{{{NODE}}}", links.RANK_KEY),
        ],
        {
            "gpu": column("GPU", width=60),
            "rank": column("Rank", width=70) | links.RANK,
            "job_id": column("Job") | links.JOB,
            "pid": column("PID", width=100),
            "stage": column("Stage now", width=110),
            "Value #D": column("for", "s", 0, width=90),
            "late": column("Late in", width=110),
            "Value #E": column("Slower by", "percentunit", 0, RED, width=95),
            "Value #F": column("GPUs lost", "none", 1, RED, width=95),
            "Value #G": column("CPUs near its GPU", "percentunit", 0, width=150),
        },
        order="gpu",
        hidden=("to_cluster",),
        height=10,
        empty="No rank is seen on this node",
    )


def _gpus() -> Panel:
    holds = marked({"1": ("yes", GREEN), "0": ("lost", RED)}) | AS_TEXT
    memory = f"{_gauge('memory_used_bytes')} / {_gauge('memory_total_bytes')}"
    uncorrected = f'rankskew_gpu_ecc_errors_total{{type="uncorrected",{GPU}}}'
    energy = _gauge("energy_joules_total")
    drawn = f"increase({energy}[$__range]) / 3.6e6"
    readings = {
        _gauge("utilization_ratio"): column("Busy", "percentunit", 0, width=60),
        memory: column("Memory", "percentunit", 0, width=75),
        f'rankskew_gpu_temperature_celsius{{sensor="gpu",{GPU}}}': column("Heat", "celsius", 0),
        _gauge("power_watts"): column("Power", "watt", 0, width=75),
        f'rankskew_gpu_clock_hertz{{clock="sm",{GPU}}}': column("SM clock", "hertz", 2),
        _gauge("pcie_link_width"): column("Lanes", "none", 0, width=65),
        _gauge("pcie_link_width_max"): column("Most", "none", 0, width=55),
        _gauge("pcie_link_generation"): column("Gen", "none", 0, width=50),
        _gauge("pcie_link_generation_max"): column("Highest", "none", 0, width=75),
        _gauge("foreign_processes"): column("Foreign", "none", 0, ORANGE, width=75),
        uncorrected: column("ECC", "none", 0, RED, width=60),
        f"sum by (gpu_uuid) ({_gauge('remapped_rows_total')})": column("Rows", "none", 0, width=60),
        _gauge("xid_events_total"): column("XID", "none", 0, width=55),
        f"{drawn} and on (cluster, instance, gpu_uuid) {UP}": column("Energy", "kwatth", 2),
    }
    shown = zip("CDEFGHIJKLMNOP", readings.values(), strict=True)
    return table(
        "GPUs",
        "Each GPU with its readings now, the lanes and the generation of its PCIe link (of what it "
        "can do; no generation while it is idle), processes that do not belong to its rank's job, "
        "its errors, and the energy that it drew in the time range.",
        [
            f"max by (gpu, gpu_uuid) ({_gauge('up')})",
            f"group by (gpu_uuid, name, numa_node) ({_gauge('info')})",
            *(f"max by (gpu_uuid) ({series})" for series in readings),
        ],
        {
            "gpu": column("GPU", width=50),
            "name": column("Model"),
            "Value #A": column("Up", width=50) | holds,
            "numa_node": column("NUMA", width=65),
            **{f"Value #{ref}": look for ref, look in shown},
        },
        order="gpu",
        key="gpu_uuid",
        height=10,
        empty="No GPU of this node is read",
    )


def _gauge(name: str) -> str:
    return f"rankskew_gpu_{name}{{{GPU}}}"


# --- What slows its GPUs down, and what is wrong with them


def _throttled() -> Panel:
    reasons = 'reason=~"sw_power_cap|sync_boost|.+_slowdown"'
    share = f"rate(rankskew_gpu_throttle_seconds_total{{{reasons},{GPU}}}[$__rate_interval])"
    return timeseries(
        "Throttled, by reason",
        "Share of the time for which a GPU's clocks were throttled, but for idle or manually set "
        "ones. A power cap is usual at full load; a thermal or hardware slowdown is not.",
        "percentunit",
        (f"topk(10, {share} > 0.01)", "GPU {{gpu}} {{reason}}", shades(ORANGE)),
        max=1,
        empty="No GPU is throttled, or none is measured",
    )


def _errors() -> Panel:
    def grown(counter: str) -> str:
        return f"increase({_gauge(counter)}[$__rate_interval]) > 0"

    # Where the first error of a kind creates its series, its count or increase() from nothing.
    legends = {
        f"{_gauge('xid_errors_total')} > 0": "GPU {{gpu}} XID {{xid}}",
        increase(_gauge("ecc_errors_total")): "GPU {{gpu}} ECC {{type}}",
        increase(_gauge("remapped_rows_total")): "GPU {{gpu}} row replaced ({{type}})",
        grown("pcie_replays_total"): "GPU {{gpu}} PCIe replay",
        grown("pcie_errors_total"): "GPU {{gpu}} PCIe (kernel)",
        grown("nvlink_errors_total"): "GPU {{gpu}} NVLink {{type}}",
        grown("nvlink_link_errors_total"): "GPU {{gpu}} NVLink {{link}}",
    }
    return timeseries(
        "Errors",
        "XID errors since the exporter's readings began (see the runbook of RankskewGpuXid); as "
        "they occur, ECC errors, replaced rows of memory, packets sent again over PCIe, and errors "
        "of NVLinks. A few corrected ECC errors are harmless; a worn contact shows here first.",
        "none",
        *legends.items(),
        empty="No error is known",
    )


# --- Its host


def _rate(counter: str) -> str:
    return f"rate(rankskew_node_{counter}{{{NODE}}}[$__rate_interval])"


def _host() -> list[Panel]:
    reads = f"{_rate('disk_read_seconds_total')} / ({_rate('disk_reads_total')} > 0)"
    mounts = f"{_rate('mount_operation_seconds_total')} / ({_rate('mount_operations_total')} > 0)"
    resent = f"{_rate('tcp_retransmitted_segments_total')} / {_rate('tcp_sent_segments_total')}"
    infiniband = f"rate(rankskew_infiniband_%s_total{{{NODE}}}[$__rate_interval])"
    sent = f"on (cluster, instance) sum by (cluster, instance) ({infiniband % 'transmit_bytes'})"
    waits = f"8 * {infiniband % 'transmit_wait'} / {sent}"
    marks = f"4096 * {infiniband % 'congestion_events'} / {sent}"
    return [
        timeseries(
            "Pressure",
            "Share of the time in which some task waited for a resource, and in which all of them "
            "did (stalled). Data loaders that starve each other show here.",
            "percentunit",
            (_rate("pressure_waiting_seconds_total"), "{{resource}}"),
            (_rate("pressure_stalled_seconds_total"), "{{resource}} stalled", line(2, dashed=True)),
            empty="The kernel does not report pressure",
        ),
        timeseries(
            "Retransmits and congestion",
            "Share of the TCP segments that are sent again; time for which the InfiniBand ports "
            "wait to send, in relation to the time that they send; marks of congestion per packet "
            "on RoCE. A node that is worse than its peers delays them.",
            "percentunit",
            (resent, "TCP sent again", DATA),
            (waits, "InfiniBand waits to send", RED),
            (marks, "RoCE marks", STAGE_COLOURS["backward"]),
            empty="Not measured",
        ),
        timeseries(
            "Time per operation on storage",
            "Mean time of a read from a disk, and of an operation on NFS or Lustre. Flash and "
            "servers need less than 5 ms.",
            "s",
            (reads, "read from {{device}}", shades(DATA)),
            (mounts, "{{export}} ({{fstype}})", shades(BLUE)),
            empty="Nothing was read",
        ),
    ]
