"""The rank dashboard: one rank of a job, its steps, GPU and host, beside its peers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from dashboards.board import (
    CLUSTER,
    JOB,
    JOB_VARIABLE,
    NUMERICAL,
    ONE_RANK,
    board,
    events,
    firing,
    lifecycle,
    restarts,
    variable,
)
from dashboards.panels import (
    GREEN,
    LABEL,
    LATE_COLOUR,
    ORANGE,
    PEERS_COLOUR,
    POINTS_OF_ALL,
    STAGE_COLOURS,
    WAIT_COLOUR,
    Panel,
    coloured_from,
    column,
    fixed,
    line,
    sentence,
    stat,
    table,
    timeseries,
    to_node,
)
from dashboards.shared_panels import alerts_panel, in_short, why_late

# An expression over the ranks of a selector: ONE_RANK, or JOB for all of them.
OfRanks = Callable[[str], str]

THIS: Final = f"rankskew_rank_info{{{ONE_RANK}}}"
THIS_GPU: Final = f"rank:rankskew_gpu:group{{{ONE_RANK}}}"
LATE: Final = f"rank:rankskew_late:ratio{{{ONE_RANK}}}"
SILENT: Final = f"rank:rankskew_silent_seconds:max{{{ONE_RANK}}}"
FINISHED: Final = f"rankskew_rank_finished{{{ONE_RANK}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{ONE_RANK}}}"
JUDGED: Final = f'job:rankskew_state:info{{state=~"healthy|rotating|straggler|slow_node",{JOB}}}'
ON_RANK: Final = "on (cluster, job_id, rank)"
_GPU: Final = "cluster, instance, gpu_uuid"
RANK_COLOUR: Final = "#E68A00"

NO_GPU: Final = "No GPU telemetry for this rank"
NO_HOST: Final = "No exporter sees the process of this rank"
NO_STEP: Final = "No step was finished"


def rank_dashboard() -> dict[str, Any]:
    """Return the dashboard of one rank of a job."""
    ranks = f"label_values(rankskew_rank_info{{{JOB}}}, rank)"
    return board(
        "rank",
        "What one rank of a job does differently from its peers, and where.",
        JOB,
        [JOB_VARIABLE, variable("rank", "Rank", ranks, sort=NUMERICAL)],
        [
            *_figures(),
            why_late(ONE_RANK, "It is not late"),
            *_step(),
            *_beside(STEPS),
            _lines(),
            _cause(),
        ],
        {
            "Its GPU": [*_beside(GPU), _throttled(), _node_pressure()],
            "Its processes": [*_beside(HOST), _identity()],
        },
        annotations=[lifecycle(JOB), restarts(JOB), events(ONE_RANK)],
    )


def _figures() -> list[Panel]:
    who = "cluster, job_id, rank, instance"
    gpu = f"topk by ({who}) (1, rankskew_gpu_rank_info{{{ONE_RANK}}})"
    stuck = f"{SUSPECT} or {ON_RANK} {SILENT} or {ON_RANK} {FINISHED}"
    quiet = f"{THIS} unless {ON_RANK} ({LATE} or {stuck})"
    fire = firing(ONE_RANK)
    return [
        sentence(
            "Where it runs",
            "The node (by its exporter's address), the process (as its container sees it), and "
            "the number of its GPU there. Click the node for its dashboard.",
            4,
            14,
            (THIS, "{{instance}}", to_node(LABEL % "instance")),
            (
                f"{THIS} * on ({who}) group_left (gpu) {gpu} or on ({who}) {THIS}",
                "PID {{pid}} · GPU {{gpu}}",
            ),
            (f"absent({THIS})", "Unknown rank", fixed(PEERS_COLOUR)),
        ),
        sentence(
            "Now",
            "Whether the rank keeps up with its peers, is late (with the stage in which it fell "
            "behind), keeps its job waiting in a hang, is silent, or has finished. Grey: its job "
            "is not judged, so nobody can know.",
            4,
            18,
            (LATE, "late in {{stage}}", fixed(LATE_COLOUR)),
            (SUSPECT, "stuck: {{stage}}", fixed(LATE_COLOUR)),
            (f"{SILENT} unless {ON_RANK} {SUSPECT}", "silent", fixed(ORANGE)),
            (FINISHED, "finished", fixed(PEERS_COLOUR)),
            (f"{quiet} and on (cluster, job_id) {JUDGED}", "keeps up", fixed(GREEN)),
            (
                f"({quiet}) unless on (cluster, job_id) {JUDGED}",
                "not judged",
                fixed(PEERS_COLOUR),
            ),
        ),
        stat(
            "GPUs lost",
            "GPUs of the whole job that do nothing but wait for this rank, mean of the last "
            "minute. Nothing while it is not late.",
            "none",
            3,
            (
                f"rank:rankskew_gpus_lost:sum{{{ONE_RANK}}}",
                "lost",
                coloured_from(0.05, LATE_COLOUR),
            ),
            decimals=2,
            empty="–",
            size=20,
            mode="value",
        ),
        stat(
            "Late since",
            "When the rank became late, by its node's clock. Nothing while it is not late.",
            "dateTimeFromNow",
            3,
            (
                f"rankskew_late_since_timestamp_seconds{{{ONE_RANK}}} * 1000",
                "late",
                fixed(LATE_COLOUR),
            ),
            empty="–",
            size=16,
            mode="value",
        ),
        sentence(
            "Cause",
            "Why it is late, as the exporter on its node says; the table below has its sentence. "
            "Not known: nothing that was measured accounts for half of its delay.",
            3,
            14,
            (in_short(f"rankskew_late_cause_info{{{ONE_RANK}}}"), "{{cause}}"),
            (f"0 * {THIS} unless {ON_RANK} {LATE}", "–", fixed(PEERS_COLOUR)),
            limits=[(LATE_COLOUR, None)],
        ),
        stat(
            "In its code",
            "The line of your code in which the late rank's stack was found most often in the "
            "stage, and the share of the samples that found it there.",
            "percentunit",
            4,
            (f"topk(1, rankskew_late_line_ratio{{{ONE_RANK}}})", "{{place}} ({{stage}})"),
            decimals=0,
            empty="–",
            size=14,
        ),
        alerts_panel("that name this rank", fire, f"{THIS} unless {ON_RANK} {fire}"),
    ]


# --- The rank alone


def _step() -> list[Panel]:
    each = _per_step("rankskew_stage_seconds_total")
    lost = f"rank_stage:rankskew_gpus_lost:sum{{{ONE_RANK}}}"
    own = f"sum by (cluster, stage) ({each(ONE_RANK)})"
    return [
        timeseries(
            "Stages of its step",
            "Where the time of each step of this rank goes; the stages add up to the step. Sync "
            "is the wait for others. A stage that grows is where the rank began to be late.",
            "s",
            16,
            (own, "{{stage}}"),
            stack={f"^{stage}$": colour for stage, colour in STAGE_COLOURS.items()},
            height=10,
            empty=NO_STEP,
        ),
        table(
            "Beside its peers, by stage",
            "Each stage of a step of this rank, the median of its peer group, and the GPUs that "
            "wait because of the difference.",
            8,
            [
                own,
                f"quantile by (cluster, stage) (0.5, {_of_peers(each)})",
                f"sum by (cluster, stage) ({lost}) or 0 * {own}",
            ],
            {
                "stage": column("Stage", width=90),
                "Value #A": column("This rank", "s", 1, width=100),
                "Value #B": column("Its peers", "s", 1, width=100),
                "Value #C": column("GPUs lost", "none", 2, LATE_COLOUR),
            },
            order="Value #A",
            key="stage",
            height=10,
            empty=NO_STEP,
        ),
    ]


def _lines() -> Panel:
    return timeseries(
        "Lines of code",
        "The line of your code in which the late rank's stack was found most often, for each "
        "stage, and the share of the samples that found it there. Only while it is late.",
        "percentunit",
        6,
        (f"rankskew_late_line_ratio{{{ONE_RANK}}}", "{{stage}}: {{place}}"),
        max=1,
        empty="No line of code is known",
    )


def _cause() -> Panel:
    figure = f'rankskew_late_cause_figure{{of="%s",{ONE_RANK}}}'
    return timeseries(
        "Figure that explains it",
        "While it is late: the figure of this rank by which its exporter explains that, in "
        "base units, that of its peers, and (on the right) how much of its delay it explains. "
        "Another figure begins where another cause explains more.",
        "sishort",
        24,
        (figure % "rank", "{{figure}} of this rank", fixed(LATE_COLOUR), line(3)),
        (figure % "peers", "{{figure}} of its peers", fixed(PEERS_COLOUR), line(2, dashed=True)),
        (
            f"rankskew_late_cause_share_ratio{{{ONE_RANK}}}",
            "explained",
            fixed(WAIT_COLOUR),
            {"custom.axisPlacement": "right", "unit": "percentunit", "max": 1},
        ),
        height=6,
        empty="Not late, or no figure explains it",
    )


def _throttled() -> Panel:
    reasons = (
        f"rate(rankskew_gpu_throttle_seconds_total{{{CLUSTER}}}[$__rate_interval])"
        f" and on ({_GPU}) {THIS_GPU}"
    )
    return timeseries(
        "GPU clocks throttled",
        "Share of the time in which the clocks of this rank's GPU were throttled, by reason. "
        "gpu_idle is a GPU without work, not a fault.",
        "percentunit",
        6,
        (f"({reasons}) > 0.01", "{{reason}}"),
        max=1,
        empty="Not throttled, or not measured",
    )


def _node_pressure() -> Panel:
    pressure = (
        f"rate(rankskew_node_pressure_waiting_seconds_total{{{CLUSTER}}}[$__rate_interval])"
        f" and on (cluster, instance) {THIS}"
    )
    return timeseries(
        "Pressure on its node",
        "Share of the time in which some task of the node waited for the resource. The "
        "rank's node has its own dashboard: click the node above.",
        "percentunit",
        6,
        (pressure, "{{resource}}"),
        max=1,
        empty="The kernel of the node measures no pressure",
    )


def _identity() -> Panel:
    place = {
        "local_rank": "Local",
        "peer_group": "Peer group",
        "dp": "DP",
        "tp": "TP",
        "pp": "PP",
        "clock": "Timed by",
        "level": "Level",
        "attempt": "Attempt",
    }
    versions = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "Driver"}
    names = {"rank": "Rank", **place, **versions}
    columns = {name: column(title, "string", width=95) for name, title in names.items()}
    runtime = f"rankskew_runtime_info{{{ONE_RANK}}}"
    return table(
        "Who it is",
        "The rank's place in the job's parallelism, how it is timed, the attempt of the "
        "launcher, and the versions that it runs.",
        24,
        [
            f"group by ({', '.join(place)}, rank) ({THIS})",
            f"group by ({', '.join(versions)}, rank) ({runtime})",
            f"group by (gpu_uuid, rank) (rankskew_gpu_rank_info{{{ONE_RANK}}})",
        ],
        columns | {"gpu_uuid": column("GPU", "string")},
        order="rank",
        key="rank",
        height=4,
        unit="string",
        empty="The rank is not seen",
    )


# --- The rank beside its peers


def _per_second(counter: str, only: str = "") -> OfRanks:
    """Return the rate of a *counter* of each rank; *only* is a further selector."""
    return lambda ranks: f"rate({counter}{{{only}{ranks}}}[$__rate_interval])"


def _per_step(counter: str, only: str = "") -> OfRanks:
    """Return the increase of a *counter* of each rank, per step."""
    return lambda ranks: (
        f"(rate({counter}{{{only}{ranks}}}[$__rate_interval])"
        " / ignoring (phase, stage) group_left ()"
        f" (rate(rankskew_steps_total{{{ranks}}}[$__rate_interval]) > 0))"
    )


def _of_gpu(metric: str, only: str = "") -> OfRanks:
    """Return *metric* of the GPU that each rank runs on, mean of the last scrapes."""
    return lambda ranks: (
        f"rank:rankskew_gpu:group{{{ranks}}} * on ({_GPU}) group_left () max by ({_GPU})"
        f" (avg_over_time({metric}{{{only}{CLUSTER}}}[$__rate_interval]))"
    )


def _of_peers(series: OfRanks) -> str:
    """Return *series* of all ranks in the peer group of this one."""
    return f"({series(JOB)}) and on (cluster, peer_group) {THIS}"


# Title, what it shows, unit, the text if there is nothing to show, and the series.
Row = tuple[str, str, str, str, OfRanks]

STEPS: Final[Sequence[Row]] = (
    (
        "Own work per step",
        "Time per step in which this rank did not wait for others, beside its peers. The rank "
        "that works longest is the one that the others wait for.",
        "s",
        NO_STEP,
        _per_step("rankskew_busy_seconds_total"),
    ),
    (
        "Wait per step",
        "Time per step that this rank waits in collectives, beside its peers. The rank that "
        "waits least is the one that the others wait for.",
        "s",
        NO_STEP,
        _per_step("rankskew_stage_seconds_total", 'stage="sync",'),
    ),
    (
        "Tokens per step",
        "Tokens in this rank's batches, beside its peers'. A rank that gets more works longer, "
        "and nothing is wrong with its GPU.",
        "short",
        "The training loop does not report this",
        _per_step("rankskew_tokens_total"),
    ),
)
GPU: Final[Sequence[Row]] = (
    (
        "GPU utilisation",
        "Share of the time in which a kernel ran on this rank's GPU, beside its peers' GPUs. A "
        "GPU that waits in a collective spins and looks busy.",
        "percentunit",
        NO_GPU,
        _of_gpu("rankskew_gpu_utilization_ratio"),
    ),
    (
        "SM clock",
        "Clock of the SMs of this rank's GPU, beside its peers' GPUs. A lower clock makes all "
        "that it computes take longer; the panel on throttling shows why.",
        "hertz",
        NO_GPU,
        _of_gpu("rankskew_gpu_clock_hertz", 'clock="sm",'),
    ),
    (
        "GPU temperature",
        "Temperature of the die of this rank's GPU, beside its peers' GPUs. From its limit on, "
        "the driver lowers the clocks.",
        "celsius",
        NO_GPU,
        _of_gpu("rankskew_gpu_temperature_celsius", 'sensor="gpu",'),
    ),
    (
        "GPU power",
        "Power that this rank's GPU draws, beside its peers' GPUs. Much less than they: it has "
        "nothing to do, or it is held back.",
        "watt",
        NO_GPU,
        _of_gpu("rankskew_gpu_power_watts"),
    ),
    (
        "GPU memory used",
        "Bytes in use on this rank's GPU, by every process, beside its peers' GPUs. More than "
        "they: look for a foreign process, or a cache that grows.",
        "bytes",
        NO_GPU,
        _of_gpu("rankskew_gpu_memory_used_bytes"),
    ),
    (
        "PCIe received",
        "Bytes per second to this rank's GPU over PCIe, beside its peers' GPUs. Less than they "
        "while it is slow in h2d: a slow link.",
        "Bps",
        NO_GPU,
        _of_gpu("rankskew_gpu_pcie_receive_bytes_per_second"),
    ),
)
HOST: Final[Sequence[Row]] = (
    (
        "CPUs used by its process",
        "CPUs that the rank's own process uses, beside its peers'. More than one: it does work "
        "on the host that may belong into the loader's workers.",
        "none",
        NO_HOST,
        _per_second("rankskew_rank_cpu_seconds_total", 'process="main",'),
    ),
    (
        "CPUs used by its workers",
        "CPUs that all processes use which the rank started, such as the workers of its "
        "DataLoader, beside its peers'.",
        "none",
        NO_HOST,
        _per_second("rankskew_rank_cpu_seconds_total", 'process="workers",'),
    ),
    (
        "Waiting for a CPU",
        "Share of the time in which the main thread of the rank was ready to run but had no "
        "CPU, beside its peers'. Anything but 0 makes the rank late.",
        "percentunit",
        NO_HOST,
        _per_second("rankskew_rank_run_queue_seconds_total", 'process="main",'),
    ),
    (
        "CPU quota used up",
        "Periods per second in which the CPU quota of the rank's cgroup was used up, so that all "
        "its processes stood still. A period is usually a tenth of a second.",
        "none",
        "No CPU quota, or no exporter sees the process of this rank",
        _per_second("rankskew_rank_cgroup_throttled_periods_total"),
    ),
    (
        "Read from storage",
        "Bytes per second that the rank and its workers read from storage, beside its peers; "
        "what is in the page cache does not count.",
        "Bps",
        NO_HOST,
        _per_second("rankskew_rank_read_bytes_total"),
    ),
    (
        "Major page faults",
        "Page faults per second for which a page had to be read from storage, beside its peers'. "
        "Many of them: the node is short of memory.",
        "none",
        NO_HOST,
        _per_second("rankskew_rank_major_faults_total"),
    ),
    (
        "Garbage collection",
        "Share of the time for which Python's garbage collection paused the rank, beside its "
        "peers. They wait for it meanwhile.",
        "percentunit",
        "The probe reports no garbage collection",
        _per_second("rankskew_gc_pause_seconds_total"),
    ),
    (
        "CUDA memory reserved",
        "Bytes that the rank's CUDA allocator holds, used or cached, beside its peers. A rank "
        "that holds more than they do has other tensors, or fragmentation.",
        "bytes",
        "The probe reports no CUDA memory",
        lambda ranks: f"rankskew_cuda_memory_reserved_bytes{{{ranks}}}",
    ),
)


def _beside(rows: Sequence[Row]) -> list[Panel]:
    """Draw the rank in a strong line, and its peer group as a median in a band."""
    edge = fixed(PEERS_COLOUR) | {"custom.lineWidth": 0}
    band = {"custom.fillBelowTo": "10 %", "custom.fillOpacity": 20}
    beside = "quantile by (cluster) (%s, %s)"
    return [
        timeseries(
            title,
            text,
            unit,
            6,
            (series(ONE_RANK), "rank $rank", fixed(RANK_COLOUR), line(3)),
            (beside % (0.9, _of_peers(series)), "90 %", edge, band),
            (
                beside % (0.5, _of_peers(series)),
                "median of its peers",
                fixed(PEERS_COLOUR),
                line(2, dashed=True),
            ),
            (beside % (0.1, _of_peers(series)), "10 %", edge),
            points=POINTS_OF_ALL,
            empty=empty,
        )
        for title, text, unit, empty, series in rows
    ]
