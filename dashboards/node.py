"""The node dashboard: its GPUs, the ranks on it, and its host."""

from collections.abc import Mapping
from typing import Any, Final

from dashboards.board import ALL, NODE, NUMERICAL, board, variable
from dashboards.panels import (
    AS_TEXT,
    GREEN,
    JOB_LINK,
    LATE_COLOUR,
    ORANGE,
    PEERS_COLOUR,
    RANK_KEY,
    RANK_LINK,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Line,
    Look,
    Panel,
    coloured_from,
    column,
    fixed,
    keyed,
    line,
    linked,
    marked,
    shades,
    stat,
    table,
    timeseries,
)
from dashboards.shared_panels import increase, seen

GPU: Final = f'{NODE},gpu=~"$gpu"'
OF_GPU: Final = "on (cluster, instance, gpu_uuid)"
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
RANK_GPU: Final = f"rank:rankskew_gpu:group{{{NODE}}}"
# GPUs with a fault, and those of late ranks.
TROUBLED: Final = f"({FAULT} or {RANK_GPU} and {OF_RANK} {LATE})"
PRICED: Final = f"{ON_JOB} group_left () job:rankskew_gpu_hour_price:value"
TEMPERATURE: Final = f'rankskew_gpu_temperature_celsius{{sensor="gpu",{GPU}}}'
SM_CLOCK: Final = f'rankskew_gpu_clock_hertz{{clock="sm",{GPU}}}'

NO_GPU: Final = "No GPU telemetry"
NO_ERRORS: Final = "No new error is known"
LIMIT: Final = fixed(PEERS_COLOUR) | line(2, dashed=True)
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
        [*_figures(), _ranks_here(), _gpus()],
        {
            "Work, memory, heat and clocks": [*_work(), *_heat(), _throttled()],
            "Links": _links(),
            "Errors": _errors(),
            "Host": _host(),
        },
    )


def _figures() -> list[Panel]:
    expected = f"sum(rankskew_gpus_expected{{{NODE}}})"
    gpus = f"group by (fault, gpu_uuid) ({FAULT})"
    return [
        stat(
            "GPUs up",
            "GPUs that answer, and GPUs that this node should have: those given by "
            "--gpus.expected, or all that were ever seen on it.",
            "none",
            4,
            (f"sum({UP})", "up"),
            (expected, "expected"),
            (f"{expected} - sum({UP}) > 0", "missing", fixed(LATE_COLOUR)),
            empty="No GPU is read",
        ),
        stat(
            "GPUs with faults",
            "GPUs with each kind of fault, as the exporter of the node finds them: lost, memory, "
            "xid in the last ten minutes, a link that is narrow, down or has errors, throttled, a "
            "foreign process, several ranks on one GPU, and so on.",
            "none",
            5,
            (f"count by (fault) ({gpus})", "{{fault}}", fixed(LATE_COLOUR)),
            (f"0 * count({UP}) unless on () count({FAULT})", "of any kind"),
            empty="–",
        ),
        stat(
            "Ranks here",
            "Ranks on this node that report (beating), do not (silent), or have ended cleanly, "
            "and those that are late now.",
            "none",
            5,
            (f"sum by (state) (rankskew_node_ranks{{{NODE}}}) > 0", "{{state}}"),
            (f"count({LATE})", "late", fixed(LATE_COLOUR)),
            by_name={"silent": fixed(ORANGE)},
            empty="No rank reports",
        ),
        stat(
            "GPUs lost because of this node",
            "GPUs, on all nodes, that do nothing but wait for ranks on this one, and what they "
            "cost in US$ per hour.",
            "none",
            5,
            (f"sum({LOST} or {HUNG})", "GPUs", coloured_from(0.05, LATE_COLOUR)),
            (
                f"sum(({LOST} or {HUNG}) * {PRICED})",
                "per hour",
                {"unit": "currencyUSD", "decimals": 0},
            ),
            decimals=1,
            empty="None known",
        ),
        stat(
            "Exporter",
            "Whether the exporter of this node answered the last scrape, and how long ago it read "
            "the GPUs; it does so about once a second.",
            "s",
            5,
            (
                f"min(up{{{NODE}}} and on (cluster, job, instance) {seen(NODE)})",
                "exporter",
                marked({"1": ("up", GREEN), "0": ("down", LATE_COLOUR)}),
            ),
            (
                f"max(time() - rankskew_nvml_sample_timestamp_seconds{{{NODE}}})",
                "since GPUs were read",
                coloured_from(60, LATE_COLOUR),
            ),
            empty="Never seen",
        ),
    ]


def _ranks_here() -> Panel:
    on_gpu = f"rankskew_gpu_rank_info{{{GPU}}}"
    info = f"rankskew_rank_info{{{NODE}}}"
    ranks = linked(keyed(f"({on_gpu} or {OF_RANK} {info})", RANK_KEY))
    late_in = f'label_replace({LATE}, "late", "$1", "stage", "(.+)")'
    return table(
        "Ranks on this node",
        "Each rank with its GPU and process, the stage it is in if it has been there for ten "
        "seconds or more, how late it is and in which stage, the GPUs that wait for it, and "
        "the share of its CPUs that are near its GPU (0.5 if it is not bound, on two NUMA "
        "nodes).",
        24,
        [
            f"group by (key, to_cluster, job_id, rank) ({ranks})",
            f"group by (key, gpu) ({keyed(on_gpu, RANK_KEY)})",
            f"group by (key, pid) ({keyed(info, RANK_KEY)})",
            f"max by (key, stage) ({keyed(f'rankskew_stage_elapsed_seconds{{{NODE}}}', RANK_KEY)})",
            f"max by (key, late) ({keyed(late_in, RANK_KEY)})",
            f"sum by (key) ({keyed(LOST, RANK_KEY)})",
            f"max by (key) ({keyed(f'rankskew_rank_numa_local{{{NODE}}}', RANK_KEY)})",
        ],
        {
            "gpu": column("GPU", width=60),
            "rank": column("Rank", width=70) | RANK_LINK,
            "job_id": column("Job") | JOB_LINK,
            "pid": column("PID", width=100),
            "stage": column("Stage now", width=110),
            "Value #D": column("for", "s", 0, width=90),
            "late": column("Late in", width=110),
            "Value #E": column("Slower by", "percentunit", 0, LATE_COLOUR, width=95),
            "Value #F": column("GPUs lost", "none", 1, LATE_COLOUR, width=95),
            "Value #G": column("CPUs near its GPU", "percentunit", 0, width=150),
        },
        order="gpu",
        hidden=("to_cluster",),
        height=10,
        empty="No rank is seen on this node",
    )


def _gpus() -> Panel:
    holds = marked({"1": ("yes", GREEN), "0": ("lost", LATE_COLOUR)}) | AS_TEXT
    energy = _gauge("energy_joules_total")
    readings = {
        _gauge("utilization_ratio"): column("Busy", "percentunit", 0, width=60),
        f"{_gauge('memory_used_bytes')} / {_gauge('memory_total_bytes')}": column(
            "Memory", "percentunit", 0, width=75
        ),
        TEMPERATURE: column("Heat", "celsius", 0, width=70),
        _gauge("power_watts"): column("Power", "watt", 0, width=75),
        SM_CLOCK: column("SM clock", "hertz", 2, width=90),
        _gauge("pcie_link_width"): column("Lanes", "none", 0, width=65),
        _gauge("pcie_link_width_max"): column("Most", "none", 0, width=55),
        _gauge("pcie_link_generation"): column("Gen", "none", 0, width=50),
        _gauge("pcie_link_generation_max"): column("Highest", "none", 0, width=75),
        _gauge("foreign_processes"): column("Foreign", "none", 0, ORANGE, width=75),
        f'rankskew_gpu_ecc_errors_total{{type="uncorrected",{GPU}}}': column(
            "ECC", "none", 0, LATE_COLOUR, width=60
        ),
        f"sum by (gpu_uuid) ({_gauge('remapped_rows_total')})": column("Rows", "none", 0, width=60),
        _gauge("xid_events_total"): column("XID", "none", 0, width=55),
        # Joules to kilowatt hours.
        f"(max_over_time({energy}[$__range]) - min_over_time({energy}[$__range])) / 3.6e6"
        f" and on (cluster, instance, gpu_uuid) {_gauge('up')}": column(
            "Energy", "kwatth", 2, width=105
        ),
    }
    columns: dict[str, Look] = {
        "gpu": column("GPU", width=50),
        "name": column("Model"),
        "Value #A": column("Up", width=50) | holds,
        "numa_node": column("NUMA", width=65),
    }
    for ref, look in zip("CDEFGHIJKLMNOP", readings.values(), strict=True):
        columns[f"Value #{ref}"] = look
    return table(
        "GPUs",
        "Each GPU with its model and NUMA node, its readings now, the lanes and the "
        "generation of its PCIe link (of what it can do; no generation while it is idle), "
        "processes that do not belong to its rank's job, its errors, and the energy that it "
        "drew in the time range.",
        24,
        [
            f"max by (gpu, gpu_uuid) ({_gauge('up')})",
            f"group by (gpu_uuid, name, numa_node) ({_gauge('info')})",
            *(f"max by (gpu_uuid) ({series})" for series in readings),
        ],
        columns,
        order="gpu",
        key="gpu_uuid",
        height=10,
        empty="No GPU of this node is read",
    )


# --- Its GPUs


def _gauge(name: str) -> str:
    return f"rankskew_gpu_{name}{{{GPU}}}"


def _gpu(title: str, text: str, unit: str, series: str, *lines: Line, **more: Any) -> Panel:
    """Return a line for each GPU of *series*: red while it is faulty or its rank is late."""
    return timeseries(
        title,
        text,
        unit,
        8,
        (
            f"({series}) and {OF_GPU} {TROUBLED}",
            "GPU {{gpu}} (late or faulty)",
            fixed(LATE_COLOUR),
            line(2),
        ),
        (f"({series}) unless {OF_GPU} {TROUBLED}", "GPU {{gpu}}", shades(WAIT_COLOUR)),
        *lines,
        height=7,
        **more,
    )


def _work() -> list[Panel]:
    decoders = f"{_gauge('decoder_utilization_ratio')} > 0"
    return [
        _gpu(
            "GPU utilisation",
            "Share of the time in which a kernel ran. A GPU that waits in a collective looks busy "
            "too. Dashed: decoders that work.",
            "percentunit",
            _gauge("utilization_ratio"),
            (decoders, "decoder of GPU {{gpu}}", shades(ORANGE), line(1, dashed=True)),
            max=1,
            empty=NO_GPU,
        ),
        _gpu(
            "Memory used",
            "Bytes of the GPU's memory that processes have allocated. Peers use about the same; "
            "a GPU with more may be shared.",
            "bytes",
            _gauge("memory_used_bytes"),
            empty=NO_GPU,
        ),
    ]


def _heat() -> list[Panel]:
    return [
        _gpu(
            "Temperature",
            "Temperature of the GPU's die. The GPU next to a broken fan is the hot one; whether "
            "heat slows it down is shown under Throttled.",
            "celsius",
            TEMPERATURE,
            empty=NO_GPU,
        ),
        _gpu(
            "Power",
            "Power draw of each GPU, and the highest power limit of all of them. A GPU that "
            "waits draws less than its peers.",
            "watt",
            _gauge("power_watts"),
            (f"max({_gauge('power_limit_watts')})", "limit", LIMIT),
            empty=NO_GPU,
        ),
        _gpu(
            "SM clock",
            "Clock of each GPU's SMs, and the highest that any of them can run at. A GPU "
            "below its peers is slower in every kernel.",
            "hertz",
            SM_CLOCK,
            (f'max(rankskew_gpu_clock_max_hertz{{clock="sm",{GPU}}})', "maximum", LIMIT),
            empty=NO_GPU,
        ),
    ]


def _throttled() -> Panel:
    reasons = 'reason=~"sw_power_cap|sync_boost|.+_slowdown"'
    seconds = f"rankskew_gpu_throttle_seconds_total{{{reasons},{GPU}}}"
    return timeseries(
        "Throttled, by reason",
        "Share of the time for which a GPU's clocks were throttled, by reason. A power cap is "
        "usual at full load; a thermal or hardware slowdown is not. Idle clocks and manually "
        "set ones are left out.",
        "percentunit",
        8,
        (
            f"topk(10, rate({seconds}[$__rate_interval]) > 0.01)",
            "GPU {{gpu}} {{reason}}",
            shades(ORANGE),
        ),
        height=7,
        max=1,
        empty="No GPU is throttled, or none is measured",
    )


def _links() -> list[Panel]:
    width = f"{_gauge('pcie_link_width')} / {_gauge('pcie_link_width_max')}"
    generation = f"{_gauge('pcie_link_generation')} - {_gauge('pcie_link_generation_max')}"
    received, sent = (
        f"rate({_gauge(f'nvlink_{way}_bytes_total')}[$__rate_interval])"
        for way in ("receive", "transmit")
    )
    return [
        _gpu(
            "PCIe traffic",
            "Bytes per second that each GPU receives and sends over PCIe. A GPU that gets its "
            "batches over a slow link has less than its peers.",
            "Bps",
            f"{_gauge('pcie_receive_bytes_per_second')}"
            f" + {_gauge('pcie_transmit_bytes_per_second')}",
            empty=NO_GPU,
        ),
        _gpu(
            "PCIe link, share of its maximum",
            "Lanes and generation of each link in use, relative to what GPU and slot can do: half "
            "if half of the lanes are gone, or if it is one generation back. The generation of an "
            "idle GPU is not counted, because power management lowers it.",
            "percentunit",
            f"{width} * (2 ^ ({generation}) or {_gauge('pcie_link_width')} ^ 0)",
            max=1,
            empty=NO_GPU,
        ),
        _gpu(
            "NVLink traffic",
            "Bytes per second that each GPU receives and sends over all its NVLinks together. "
            "GPUs without NVLink have no line.",
            "Bps",
            f"{received} + {sent}",
            empty="No NVLink",
        ),
    ]


def _errors() -> list[Panel]:
    def grown(counter: str) -> str:
        return f"increase({_gauge(counter)}[$__rate_interval]) > 0"

    return [
        # Not an increase: the first error of a kind creates its series.
        _new_errors(
            "XID errors",
            "Errors that the driver has reported since the exporter's readings began, by number. "
            "The runbook of RankskewGpuXid says which of them are the hardware's.",
            {f"{_gauge('xid_errors_total')} > 0": "GPU {{gpu}} XID {{xid}}"},
            "No XID error is known",
        ),
        _new_errors(
            "Memory errors",
            "ECC errors and replaced rows of the GPUs' memory, as they occur. Corrected ECC errors "
            "are harmless while they are few; others are not.",
            {
                increase(_gauge("ecc_errors_total")): "GPU {{gpu}} ECC {{type}}",
                increase(_gauge("remapped_rows_total")): "GPU {{gpu}} row replaced ({{type}})",
            },
        ),
        _new_errors(
            "Link errors",
            "Packets that had to be sent again over PCIe, and errors of the NVLinks, as they "
            "occur. A worn contact shows here before the link loses lanes.",
            {
                grown("pcie_replays_total"): "GPU {{gpu}} PCIe replay",
                grown("nvlink_errors_total"): "GPU {{gpu}} NVLink {{type}}",
                grown("pcie_errors_total"): "GPU {{gpu}} PCIe (kernel)",
                grown("nvlink_link_errors_total"): "GPU {{gpu}} NVLink {{link}}",
            },
        ),
    ]


def _new_errors(title: str, text: str, legends: Mapping[str, str], empty: str = NO_ERRORS) -> Panel:
    colours = 2 * (LATE_COLOUR, ORANGE)
    lines: list[Line] = [
        (series, legend, shades(colour))
        for (series, legend), colour in zip(legends.items(), colours, strict=False)
    ]
    return timeseries(title, text, "none", 8, *lines, height=6, empty=empty)


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
            8,
            (_rate("pressure_waiting_seconds_total"), "{{resource}}"),
            (_rate("pressure_stalled_seconds_total"), "{{resource}} stalled"),
            by_pattern={
                "^cpu": fixed(WAIT_COLOUR),
                "^io": fixed(DATA),
                "^memory": fixed(LATE_COLOUR),
                "stalled$": line(2, dashed=True),
            },
            height=7,
            empty="The kernel does not report pressure",
        ),
        timeseries(
            "Retransmits and congestion",
            "Share of the TCP segments that are sent again; time for which the InfiniBand ports "
            "wait to send, in relation to the time that they send; marks of congestion per packet "
            "on RoCE. A node that is worse than its peers delays them.",
            "percentunit",
            8,
            (resent, "TCP sent again", fixed(DATA)),
            (waits, "InfiniBand waits to send", fixed(LATE_COLOUR)),
            (marks, "RoCE marks", fixed(STAGE_COLOURS["backward"])),
            height=7,
            empty="Not measured",
        ),
        timeseries(
            "Time per operation on storage",
            "Mean time of a read from a disk, and of an operation on NFS or Lustre. Flash and "
            "servers need less than 5 ms.",
            "s",
            8,
            (reads, "read from {{device}}", shades(DATA)),
            (mounts, "{{export}} ({{fstype}})", shades(WAIT_COLOUR)),
            height=7,
            empty="Nothing was read",
        ),
    ]
