"""The rank dashboard: one rank of a job, its steps, GPU and host, beside its peers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from dashboards import links
from dashboards.board import (
    CLUSTER,
    JOB,
    JOB_VARIABLE,
    NUMERICAL,
    ONE_RANK,
    annotations,
    board,
    firing,
    variable,
)
from dashboards.panels import (
    GREEN,
    GREY,
    ORANGE,
    POINTS_OF_ALL,
    RED,
    STAGE_COLOURS,
    WRAP,
    Panel,
    coloured_from,
    column,
    fixed,
    line,
    sentence,
    stat,
    table,
    timeseries,
)
from dashboards.shared_panels import WHY_IN_WORDS, alerts_panel, explained, per_step

# An expression over the ranks of a selector: ONE_RANK, or JOB for all of them.
OfRanks = Callable[[str], str]

THIS: Final = f"rankskew_rank_info{{{ONE_RANK}}}"
THIS_GPU: Final = f"rank:rankskew_gpu:group{{{ONE_RANK}}}"
LATE: Final = f"rank:rankskew_late:ratio{{{ONE_RANK}}}"
SILENT: Final = f"rank:rankskew_silent_seconds:max{{{ONE_RANK}}}"
FINISHED: Final = f"rankskew_rank_finished{{{ONE_RANK}}}"
SUSPECT: Final = f"rank_stage:rankskew_hang_suspect:group{{{ONE_RANK}}}"
JUDGED: Final = (
    f'job:rankskew_state:info{{state=~"healthy|rotating|pause|shared|straggler|slow_node",{JOB}}}'
)
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
        [_figures(), [_why_late()], _step(), _beside(STEPS)],
        {
            "Its GPU": [[*_beside(GPU), _throttled()]],
            "Its node and processes": [_beside(HOST[:3]), _beside(HOST[3:]), [_identity()]],
        },
        annotations=annotations(ONE_RANK),
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
            (THIS, "{{instance}}", links.to_node(links.LABEL % "instance")),
            (
                f"{THIS} * on ({who}) group_left (gpu) {gpu} or on ({who}) {THIS}",
                "PID {{pid}} · GPU {{gpu}}",
            ),
            (f"absent({THIS})", "Unknown rank", GREY),
            span=5,
            size=14,
        ),
        sentence(
            "Now",
            "Whether the rank keeps up with its peers, is late (in which stage), stops its job, is "
            "silent, or has finished. Grey: its job is not judged, so nobody can know.",
            (LATE, "late in {{stage}}", RED),
            (SUSPECT, "stuck: {{stage}}", RED),
            (f"{SILENT} unless {ON_RANK} {SUSPECT}", "silent", ORANGE),
            (FINISHED, "finished", GREY),
            (f"{quiet} and on (cluster, job_id) {JUDGED}", "keeps up", GREEN),
            (f"({quiet}) unless on (cluster, job_id) {JUDGED}", "not judged", GREY),
            span=5,
            size=18,
        ),
        stat(
            "Late",
            "Since when the rank is late, by its node's clock, and the GPUs of the whole job that "
            "do nothing but wait for it, mean of the last minute.",
            "dateTimeFromNow",
            (f"rankskew_late_since_timestamp_seconds{{{ONE_RANK}}} * 1000", "since", RED),
            (
                f"rank:rankskew_gpus_lost:sum{{{ONE_RANK}}}",
                "GPUs lost",
                {"unit": "none", "decimals": 2} | coloured_from(0.05, RED),
            ),
            empty="–",
            span=6,
            size=18,
        ),
        stat(
            "In its code",
            "The line of your code in which the late rank's stack was found most often in the "
            "stage, and the share of the samples that found it there.",
            "percentunit",
            (f"topk(1, rankskew_late_line_ratio{{{ONE_RANK}}})", "{{place}} ({{stage}})"),
            span=5,
            decimals=0,
            empty="–",
            size=14,
        ),
        alerts_panel("that name this rank", fire, f"{THIS} unless {ON_RANK} {fire}"),
    ]


# --- The rank alone


def _why_late() -> Panel:
    figure = f'max by (rank) (rankskew_late_cause_figure{{of="%s",{ONE_RANK}}})'
    why = explained(f"rankskew_late_cause_info{{{ONE_RANK}}}")
    return table(
        "Why late",
        "The cause, as the exporter on its node found it: a sentence with the figure of the rank "
        "and that of its peers, how much of its delay that explains, and what to do first. "
        "Not known: no measured cause accounts for half of the delay.",
        [
            f"max by (rank, why, sentence, first_action) ({why})",
            f"max by (rank) (rankskew_late_cause_share_ratio{{{ONE_RANK}}})",
            figure % "rank",
            figure % "peers",
        ],
        {
            "why": column("Cause", width=180) | WHY_IN_WORDS | WRAP,
            "sentence": column("Because") | WRAP,
            "Value #B": column("Explains", "percentunit", 0, width=75),
            "Value #C": column("Figure", "sishort", width=75),
            "Value #D": column("Its peers'", "sishort", width=80),
            "first_action": column("Do first", width=500) | WRAP,
        },
        order="Value #A",
        key="rank",
        height=4,
        empty="It is not late",
    )


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
            (own, "{{stage}}"),
            stack={f"^{stage}$": colour for stage, colour in STAGE_COLOURS.items()},
            span=16,
            height=10,
            empty=NO_STEP,
        ),
        table(
            "Beside its peers, by stage",
            "Each stage of a step of this rank, the median of its peer group, and the GPUs that "
            "wait because of the difference.",
            [
                own,
                f"quantile by (cluster, stage) (0.5, {_of_peers(each)})",
                f"sum by (cluster, stage) ({lost}) or 0 * {own}",
            ],
            {
                "stage": column("Stage", width=90),
                "Value #A": column("This rank", "s", 1, width=100),
                "Value #B": column("Its peers", "s", 1, width=100),
                "Value #C": column("GPUs lost", "none", 2, RED),
            },
            order="Value #A",
            key="stage",
            span=8,
            height=10,
            empty=NO_STEP,
        ),
    ]


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
        (f"({reasons}) > 0.01", "{{reason}}"),
        max=1,
        empty="Not throttled, or not measured",
    )


def _identity() -> Panel:
    place = {"local_rank": "Local", "peer_group": "Peer group", "dp": "DP", "tp": "TP", "pp": "PP"}
    place |= {"clock": "Timed by", "level": "Level", "attempt": "Attempt"}
    versions = {"torch": "torch", "cuda": "CUDA", "nccl": "NCCL", "driver": "Driver"}
    shown = {"rank": "Rank", **place, **versions, "gpu_uuid": "GPU"}
    return table(
        "Who it is",
        "The rank's place in the job's parallelism, how it is timed, the attempt of the "
        "launcher, and the versions that it runs.",
        [
            f"group by ({', '.join(place)}, rank) ({THIS})",
            f"group by ({', '.join(versions)}, rank) (rankskew_runtime_info{{{ONE_RANK}}})",
            f"group by (gpu_uuid, rank) (rankskew_gpu_rank_info{{{ONE_RANK}}})",
        ],
        {name: column(title, "string") for name, title in shown.items()},
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
    """Return what a *counter* of each rank grows by in a step; *only* is a further selector."""
    return lambda ranks: per_step(counter, f"{only}{ranks}", ranks)


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
)
HOST: Final[Sequence[Row]] = (
    (
        "PCIe received",
        "Bytes per second to this rank's GPU over PCIe, beside its peers' GPUs. If it receives "
        "less than they do while it is slow in h2d, its link is slow.",
        "Bps",
        NO_GPU,
        _of_gpu("rankskew_gpu_pcie_receive_bytes_per_second"),
    ),
    (
        "CPUs used by its workers",
        "CPUs used by all processes that the rank started, such as its DataLoader workers, "
        "beside its peers'.",
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
        "Garbage collection",
        "Share of the time for which Python's garbage collection paused the rank, beside its "
        "peers. They wait for it meanwhile.",
        "percentunit",
        "The probe reports no garbage collection",
        _per_second("rankskew_gc_pause_seconds_total"),
    ),
)


def _beside(rows: Sequence[Row]) -> list[Panel]:
    """Draw the rank in a strong line, and its peer group as a median in a band."""
    edge = fixed(GREY) | {"custom.lineWidth": 0}
    band = {"custom.fillBelowTo": "10 %", "custom.fillOpacity": 20}
    beside = "quantile by (cluster) (%s, %s)"
    return [
        timeseries(
            title,
            text,
            unit,
            (series(ONE_RANK), "rank $rank", RANK_COLOUR, line(3)),
            (beside % (0.9, _of_peers(series)), "90 %", edge, band),
            (beside % (0.5, _of_peers(series)), "median of its peers", GREY, line(2, dashed=True)),
            (beside % (0.1, _of_peers(series)), "10 %", edge),
            points=POINTS_OF_ALL,
            empty=empty,
        )
        for title, text, unit, empty, series in rows
    ]
