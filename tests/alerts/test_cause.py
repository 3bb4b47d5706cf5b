"""Each named rank has one cause: what the evidence says together with where it is late."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rank_probe.stages import STAGES
from tests.alerts.promtool import Expect, assert_rules

GROUPS = ["thresholds", "fallback", "straggler", "hardware", "cause"]
RANKS = 4
CAUSES = (
    "extra_duties",
    "gc",
    "uneven_batches",
    "slow_device",
    "foreign_process",
    "input",
    "cpu",
    "network",
    "unknown",
)
# More than the longest window.
END = 180.0
PORT, ETH = 'device="mlx5_0",port="1"', 'device="eth0"'
CAUSE = "rank:rankskew_cause:info"
EVIDENCE = "rank_cause:rankskew_evidence:ratio"


@dataclass(frozen=True)
class Late:
    """What a late rank's exporter shows: *cost* in GPUs, by stage, the first of which is told."""

    cost: Mapping[str, float] = field(hash=False)
    ratio: float = 0.25
    rank: int = 1
    job_id: str = "j"
    kind: str = "persistent"
    since: float = 0.0


@dataclass(frozen=True)
class Nodes:
    """Four ranks on *nodes* of their own, and what the exporters there say of them.

    *odd* is what is measured beyond a healthy job: series without values, and what they grow by in
    each of 15 seconds ("+0.5") or are ("2").
    """

    late: tuple[Late, ...] = (Late({"forward": 1.0}),)
    odd: Mapping[str, str] = field(default_factory=dict)
    telemetry: bool = True
    job_ids: tuple[str, ...] = ("j",)
    nodes: int = 2

    def series(self) -> list[dict[str, str]]:
        """Return the input series, those in *odd* in place of the healthy ones."""
        values = {name: value for job_id in self.job_ids for name, value in self._job(job_id)}
        if self.telemetry:
            values |= dict(self._telemetry())
        values |= {spaceless(name): value for name, value in self.odd.items()}
        return [{"series": name, "values": notation(value)} for name, value in values.items()]

    def node(self, rank: int) -> str:
        return f"n{rank * self.nodes // RANKS}"

    def _rank(self, job_id: str, rank: int) -> str:
        return (
            f'job_id="{job_id}",peer_group="all",rank="{rank}",instance="{job_id}{self.node(rank)}"'
        )

    def _job(self, job_id: str) -> list[tuple[str, str]]:
        values = [(f'rankskew_job_ranks{{job_id="{job_id}",peer_group="all"}}', str(RANKS))]
        values += [
            (
                f'rankskew_node_ranks{{job_id="{job_id}",instance="{job_id}n{node}",'
                'state="beating"}',
                str(RANKS // self.nodes),
            )
            for node in range(self.nodes)
        ]
        for rank in range(RANKS):
            values.append((f"rankskew_steps_total{{{self._rank(job_id, rank)}}}", "+30"))
        for late in self.late:
            if late.job_id == job_id:
                who = self._rank(job_id, late.rank)
                how = f'{who},kind="{late.kind}",stage="{next(iter(late.cost))}"'
                since = f"rankskew_late_since_timestamp_seconds{{{who}}}"
                values += [(f"rankskew_late_ratio{{{how}}}", str(late.ratio))]
                values += [(since, str(late.since))]
                values += [
                    (f'rankskew_late_gpus{{{who},stage="{stage}"}}', str(gpus))
                    for stage, gpus in late.cost.items()
                ]
        return values

    def _telemetry(self) -> list[tuple[str, str]]:
        values: list[tuple[str, str]] = []
        for job_id in self.job_ids:
            for rank in range(RANKS):
                who, node = self._rank(job_id, rank), f'instance="{job_id}{self.node(rank)}"'
                gpu = f'{node},gpu_uuid="GPU-{rank}"'
                values += [
                    (f'rankskew_gpu_rank_info{{{who},gpu_uuid="GPU-{rank}"}}', "1"),
                    (f"rankskew_tokens_total{{{who}}}", "+30000"),
                    (f"rankskew_gc_pause_seconds_total{{{who}}}", "+0.1"),
                    (f"rankskew_rank_numa_local{{{who}}}", "1"),
                    (f'rankskew_rank_cpu_seconds_total{{{who},process="main"}}', "+14"),
                    (f'rankskew_rank_cpu_seconds_total{{{who},process="workers"}}', "+20"),
                    (f'rankskew_rank_run_queue_seconds_total{{{who},process="main"}}', "+0.1"),
                    (f'rankskew_rank_run_queue_seconds_total{{{who},process="workers"}}', "+1"),
                    (f"rankskew_rank_major_faults_total{{{who}}}", "+15"),
                    (f"rankskew_rank_read_bytes_total{{{who}}}", "+150000000"),
                    (f"rankskew_rank_saturated_workers{{{who}}}", "0"),
                    (f"rankskew_rank_cgroup_periods_total{{{who}}}", "+150"),
                    (f"rankskew_rank_cgroup_throttled_periods_total{{{who}}}", "+15"),
                    (f'rankskew_rank_cgroup_pressure_seconds_total{{{who},resource="io"}}', "+1"),
                    (f'rankskew_gpu_clock_hertz{{{gpu},clock="sm"}}', "1800"),
                    (f"rankskew_gpu_pcie_link_width{{{gpu}}}", "16"),
                    (f"rankskew_gpu_pcie_link_width_max{{{gpu}}}", "16"),
                    (f"rankskew_gpu_pcie_link_generation{{{gpu}}}", "5"),
                    (f"rankskew_gpu_pcie_link_generation_max{{{gpu}}}", "5"),
                    (f"rankskew_gpu_nvlink_links{{{gpu}}}", "18"),
                    (f"rankskew_gpu_nvlink_links_up{{{gpu}}}", "18"),
                    (f"rankskew_gpu_utilization_ratio{{{gpu}}}", "1"),
                    (f"rankskew_gpu_row_remap_pending{{{gpu}}}", "0"),
                    (f"rankskew_gpu_performance_state{{{gpu}}}", "0"),
                    (f"rankskew_gpu_decoder_utilization_ratio{{{gpu}}}", "0.5"),
                    (f"rankskew_gpu_pcie_replays_total{{{gpu}}}", "+1"),
                    (f"rankskew_gpu_pcie_errors_total{{{gpu}}}", "+1"),
                    (f"rankskew_gpu_foreign_processes{{{gpu}}}", "0"),
                ]
            for number in range(self.nodes):
                node = f'instance="{job_id}n{number}"'
                cpu = f'rankskew_node_cpu_seconds_total{{{node},numa_node="0",mode='
                values += [
                    (f'{cpu}"idle"}}', "+900"),
                    (f'{cpu}"iowait"}}', "+1"),
                    (f'{cpu}"steal"}}', "+0"),
                    (pressure(node, "cpu"), "+1"),
                    (pressure(node, "io"), "+0.5"),
                    (f'rankskew_infiniband_errors_total{{{node},port="1"}}', "+0"),
                    (f"rankskew_node_cpu_throttled_seconds_total{{{node}}}", "+0"),
                    (f"rankskew_node_cpu_clock_hertz{{{node}}}", "3000000000"),
                    (f"rankskew_node_numa_misses_total{{{node}}}", "+0"),
                    (f'rankskew_node_disk_busy_seconds_total{{{node},device="sda"}}', "+3"),
                    (f'rankskew_node_disk_reads_total{{{node},device="sda"}}', "+1500"),
                    (f'rankskew_node_disk_read_seconds_total{{{node},device="sda"}}', "+3"),
                    *((mounted("operations", node, each), "+1500") for each in (NFS, LUSTRE)),
                    *((mounted("operation_seconds", node, each), "+3") for each in (NFS, LUSTRE)),
                    (f"rankskew_infiniband_rate_bytes_per_second{{{node},{PORT}}}", "50e9"),
                    (f"rankskew_infiniband_transmit_bytes_total{{{node},{PORT}}}", "+8e9"),
                    (f"rankskew_infiniband_transmit_wait_total{{{node}}}", "+5e7"),
                    (f"rankskew_infiniband_congestion_events_total{{{node}}}", "+10000"),
                    (f"rankskew_node_network_speed_bytes_per_second{{{node},{ETH}}}", "12.5e9"),
                    (f"rankskew_node_network_errors_total{{{node}}}", "+0"),
                    (f"rankskew_node_tcp_sent_segments_total{{{node}}}", "+150000"),
                    (f"rankskew_node_tcp_retransmitted_segments_total{{{node}}}", "+30"),
                ]
        return values


def spaceless(series: str) -> str:
    return series.replace(", ", ",")


def notation(value: str) -> str:
    """Return promtool's notation of ten minutes: constant, growing from 0, or *value* itself."""
    if "x" in value:
        return value
    return f"0{value}x40" if value.startswith("+") else f"{value}x40"


def pressure(node: str, resource: str) -> str:
    return f'rankskew_node_pressure_waiting_seconds_total{{{node},resource="{resource}"}}'


def mounted(what: str, node: str, export: str) -> str:
    return f"rankskew_node_mount_{what}_total{{{node},{export}}}"


def labels(late: Late, node: str, cause: str) -> str:
    name, _, detail = cause.partition("/")
    more = f',detail="{detail}"' if detail else ""
    return (
        f'{{cause="{name}"{more},instance="{late.job_id}{node}",job_id="{late.job_id}",'
        f'peer_group="all",rank="{late.rank}"}}'
    )


def assert_causes(folder: Path, job: Nodes, causes: Mapping[Late, str], *more: Expect) -> None:
    """Assert that the named ranks of *job* have exactly *causes*, "cause" or "cause/detail"."""
    expected = [
        Expect(
            CAUSE,
            END,
            {CAUSE + labels(late, job.node(late.rank), cause): 1 for late, cause in causes.items()},
        ),
        *more,
    ]
    assert_rules(folder, job.series(), expected, groups=GROUPS)


Case = tuple[Late, Mapping[str, str], str]


def assert_cases(folder: Path, cases: list[Case], nodes: int = 2, telemetry: bool = True) -> None:
    """Assert the cause of each case, all of them in one run, each as a job "c1", "c2"..."""
    series: list[dict[str, str]] = []
    samples = {}
    for number, (late, odd, cause) in enumerate(cases, 1):
        job_id = f"c{number}"
        mine = replace(late, job_id=job_id)
        theirs = {of_job(name, job_id): value for name, value in odd.items()}
        job = Nodes((mine,), theirs, telemetry, (job_id,), nodes)
        series += job.series()
        samples[CAUSE + labels(mine, job.node(late.rank), cause)] = 1.0
    assert_rules(folder, series, [Expect(CAUSE, END, samples)], groups=GROUPS)


def of_job(series: str, job_id: str) -> str:
    return series.replace('job_id="j"', f'job_id="{job_id}"').replace('"jn', f'"{job_id}n')


FORWARD = Late({"forward": 1.0})
DATA = Late({"data": 1.0})
OTHER = Late({"other": 1.0})
SLOW_NODE = Late({"data": 1.0}, kind="node")
H2D = Late({"h2d": 1.0})

WHO = 'job_id="j",peer_group="all",rank="1",instance="jn0"'
GPU = 'instance="jn0",gpu_uuid="GPU-1"'
NODE = 'instance="jn0"'
CPU = f'rankskew_node_cpu_seconds_total{{{NODE},numa_node="0",mode='

NFS = 'export="10.0.0.5:/data",fstype="nfs"'
LUSTRE = 'export="scratch",fstype="lustre"'

# A quarter late, so a quarter more work, or a clock lower by a fifth, explains all of it.
MORE_TOKENS = {f"rankskew_tokens_total{{{WHO}}}": "+37500"}
COLLECTS = {f"rankskew_gc_pause_seconds_total{{{WHO}}}": "+2.2"}
SLOW_CLOCK = {f'rankskew_gpu_clock_hertz{{{GPU},clock="sm"}}': "1440"}
FOREIGN = {f"rankskew_gpu_foreign_processes{{{GPU}}}": "2"}
NARROW = {f"rankskew_gpu_pcie_link_width{{{GPU}}}": "8"}
OLD_LINK = {f"rankskew_gpu_pcie_link_generation{{{GPU}}}": "3"}
LINKS_DOWN = {f"rankskew_gpu_nvlink_links_up{{{GPU}}}": "16"}
FAILED = {f"rankskew_gpu_row_remap_failed{{{GPU}}}": "1"}
WRONG_CPUS = {f"rankskew_rank_numa_local{{{WHO}}}": "0"}
PRESSURE = {pressure(NODE, "cpu"): "+9"}
STOLEN = {f'{CPU}"steal"}}': "+100"}
DISK = {pressure(NODE, "io"): "+9"}
WAITS = {pressure(NODE, "io"): "_", f'{CPU}"iowait"}}': "+30"}
THROTTLED = {f"rankskew_rank_cgroup_throttled_periods_total{{{WHO}}}": "+60"}
# A sixth of the time; a rank that is a quarter late loses a fifth.
QUEUES = {f'rankskew_rank_run_queue_seconds_total{{{WHO},process="main"}}': "+2.5"}
WORKERS_QUEUE = {f'rankskew_rank_run_queue_seconds_total{{{WHO},process="workers"}}': "+15"}
IDLE_WORKERS = {f'rankskew_rank_cpu_seconds_total{{{WHO},process="workers"}}': "+0.5"}
READS = {f"rankskew_rank_read_bytes_total{{{WHO}}}": "+600000000"}
FAULTS = {f"rankskew_rank_major_faults_total{{{WHO}}}": "+1800"}
IO_PRESSURE = {f'rankskew_rank_cgroup_pressure_seconds_total{{{WHO},resource="io"}}': "+9"}
SATURATED = {f"rankskew_rank_saturated_workers{{{WHO}}}": "2"}
# A tenth of 15 seconds; half the clock; a disk that is never idle, and operations of 27 ms.
HOT_CPU = {f"rankskew_node_cpu_throttled_seconds_total{{{NODE}}}": "+1.6"}
SLOW_CPU = {f"rankskew_node_cpu_clock_hertz{{{NODE}}}": "1500000000"}
NUMA_MISSES = {f"rankskew_node_numa_misses_total{{{NODE}}}": "+160000"}
BUSY_DISK = {f'rankskew_node_disk_busy_seconds_total{{{NODE},device="sda"}}': "+14"}
SLOW_DISK = {f'rankskew_node_disk_read_seconds_total{{{NODE},device="sda"}}': "+40"}
SLOW_NFS = {mounted("operation_seconds", NODE, NFS): "+40"}
SLOW_LUSTRE = {mounted("operation_seconds", NODE, LUSTRE): "+40"}
BAD_PORT = {f'rankskew_infiniband_errors_total{{{NODE},port="1"}}': "+60"}
DROPS = {
    f'rankskew_node_network_{way}_drops_total{{{NODE},device="eth0"}}': "+60"
    for way in ("receive", "transmit")
}
DAMAGED = {f"rankskew_node_network_errors_total{{{NODE}}}": "+60"}
SLOW_PORT = {f"rankskew_infiniband_rate_bytes_per_second{{{NODE},{PORT}}}": "25e9"}
PORT_DOWN = {f"rankskew_infiniband_rate_bytes_per_second{{{NODE},{PORT}}}": "0"}
SLOW_ETH = {f"rankskew_node_network_speed_bytes_per_second{{{NODE},{ETH}}}": "1.25e9"}
REPEATS = {f"rankskew_node_tcp_retransmitted_segments_total{{{NODE}}}": "+1600"}
FEW_SEGMENTS = {f"rankskew_node_tcp_sent_segments_total{{{NODE}}}": "+1400"}
# The ports send 8e9 bytes, which is 1e9 ticks, and 1.95 million packets.
CONGESTED = {f"rankskew_infiniband_transmit_wait_total{{{NODE}}}": "+1.1e8"}
MARKED = {f"rankskew_infiniband_congestion_events_total{{{NODE}}}": "+20000"}
REPLAYS = {f"rankskew_gpu_pcie_replays_total{{{GPU}}}": "+16"}
AER = {f"rankskew_gpu_pcie_errors_total{{{GPU}}}": "+16"}
BAD_LINK = {f'rankskew_gpu_nvlink_link_errors_total{{{GPU},link="3"}}': "+16"}
SLOWER_STATE = {f"rankskew_gpu_performance_state{{{GPU}}}": "2"}
DECODES = {f"rankskew_gpu_decoder_utilization_ratio{{{GPU}}}": "0.95"}


def test_evidence_and_stage_make_the_cause(tmp_path: Path) -> None:
    """A late rank of which one thing is odd has that for its cause."""
    cases: list[Case] = [
        (FORWARD, MORE_TOKENS, "uneven_batches"),
        (FORWARD, SLOW_CLOCK, "slow_device/clocks"),
        (H2D, NARROW, "slow_device/pcie_link"),
        (H2D, OLD_LINK, "slow_device/pcie_link"),
        (FORWARD, LINKS_DOWN, "slow_device/nvlink"),
        (FORWARD, FAILED, "slow_device/memory"),
        (H2D, AER, "slow_device/pcie_errors"),
        (H2D, REPLAYS, "slow_device/pcie_errors"),
        (FORWARD, BAD_LINK, "slow_device/nvlink_errors"),
        (FORWARD, SLOWER_STATE, "slow_device/pstate"),
        (DATA, DECODES, "input/decoder"),
        (FORWARD, FOREIGN, "foreign_process"),
        (H2D, WRONG_CPUS, "cpu/numa"),
        (DATA, {}, "input"),
        (OTHER, COLLECTS, "gc"),
        (Late({"checkpoint": 1.0}), {}, "extra_duties/checkpoint"),
        (Late({"eval": 0.6, "data": 0.4}), {}, "extra_duties/eval"),
        (OTHER, {}, "extra_duties/other"),
        (FORWARD, {}, "unknown"),
    ]

    assert_cases(tmp_path, cases)


def test_processes_of_the_rank_are_the_cause(tmp_path: Path) -> None:
    """A late rank whose process or workers lack CPUs, read from storage or never wait is theirs."""
    cases: list[Case] = [
        (DATA, THROTTLED, "cpu/throttled"),
        (FORWARD, THROTTLED, "cpu/throttled"),
        (DATA, QUEUES, "cpu/run_queue"),
        (FORWARD, QUEUES, "cpu/run_queue"),
        (DATA, WORKERS_QUEUE, "cpu/workers_run_queue"),
        (DATA, READS, "input/reads"),
        (DATA, FAULTS, "input/reads"),
        (DATA, IO_PRESSURE, "input/reads"),
        (DATA, SATURATED, "input/workers"),
        (replace(DATA, kind="node"), THROTTLED, "cpu/throttled"),
    ]

    assert_cases(tmp_path, cases)


def test_processes_just_below_the_thresholds_are_not_the_cause(tmp_path: Path) -> None:
    """A quarter of the periods, half of the workers' time, 20 MB/s, 100 faults a second."""
    cases: list[Case] = [
        (DATA, just_below(THROTTLED, "+37"), "input"),
        (DATA, just_below(QUEUES, "+1.4"), "input"),
        (DATA, just_below(WORKERS_QUEUE, "+9.9"), "input"),
        (DATA, just_below(READS, "+440000000"), "input"),
        (DATA, just_below(FAULTS, "+1500"), "input"),
        (DATA, just_below(IO_PRESSURE, "+3.7"), "input"),
        (DATA, just_below(SATURATED, "0"), "input"),
    ]

    assert_cases(tmp_path, cases)


def just_below(odd: Mapping[str, str], value: str) -> dict[str, str]:
    return dict.fromkeys(odd, value)


def test_processes_explain_only_the_stages_that_they_do(tmp_path: Path) -> None:
    """What the workers read does not delay the forward pass; a quota does not write checkpoints."""
    cases: list[Case] = [
        (FORWARD, READS | FAULTS | IO_PRESSURE | SATURATED, "unknown"),
        (OTHER, THROTTLED | WORKERS_QUEUE, "extra_duties/other"),
        # Workers that hardly run do not wait for CPUs, whatever a short moment of theirs says.
        (DATA, WORKERS_QUEUE | IDLE_WORKERS, "input"),
    ]

    assert_cases(tmp_path, cases)


def test_what_the_processes_of_most_peers_have_is_not_the_cause(tmp_path: Path) -> None:
    """What both ranks of its node have, or three of four ranks, makes none of them later."""
    shared = [THROTTLED, QUEUES, WORKERS_QUEUE, READS, FAULTS, IO_PRESSURE, SATURATED]
    cases: list[Case] = [(DATA, everywhere(odd, (0, 1, 2)), "input") for odd in shared]

    assert_cases(tmp_path, cases)


def test_node_that_hides_its_processes_has_the_other_causes(tmp_path: Path) -> None:
    """Without rights, schedstat, cgroups or pressure, what is left still says what it can."""
    hidden = {name: "_" for name, _ in Nodes()._telemetry() if "rankskew_rank_" in name}
    del hidden[f"rankskew_rank_numa_local{{{WHO}}}"]
    cases: list[Case] = [
        (DATA, hidden, "input"),
        (DATA, hidden | {f"rankskew_rank_saturated_workers{{{WHO}}}": "2"}, "input/workers"),
        (FORWARD, hidden | SLOW_CLOCK, "slow_device/clocks"),
    ]

    assert_cases(tmp_path, cases)


def test_of_several_causes_of_its_processes_the_first_wins(tmp_path: Path) -> None:
    """A quota is why they wait, waiting why they are slow; both before the node and the stage."""
    cases: list[Case] = [
        (DATA, THROTTLED | QUEUES | WORKERS_QUEUE | READS | SATURATED, "cpu/throttled"),
        (DATA, QUEUES | WORKERS_QUEUE | READS, "cpu/run_queue"),
        (DATA, WORKERS_QUEUE | READS | SATURATED, "cpu/workers_run_queue"),
        (DATA, READS | SATURATED, "input/reads"),
        (replace(DATA, kind="node"), SATURATED | DISK | PRESSURE, "input/workers"),
        (FORWARD, SLOW_CLOCK | THROTTLED, "slow_device/clocks"),
        (OTHER, COLLECTS | QUEUES, "gc"),
    ]

    assert_cases(tmp_path, cases)


def test_of_a_slow_node_its_facts_are_the_cause(tmp_path: Path) -> None:
    """What the ranks of a node share makes the node late: its CPUs, its disk, its network."""
    in_forward = replace(SLOW_NODE, cost={"forward": 1.0})
    cases: list[Case] = [
        (in_forward, PRESSURE, "cpu"),
        (in_forward, STOLEN, "cpu"),
        (SLOW_NODE, PRESSURE, "cpu"),
        (SLOW_NODE, DISK, "input/storage"),
        (SLOW_NODE, WAITS, "input/storage"),
        (SLOW_NODE, DISK | PRESSURE | BAD_PORT, "input/storage"),
        (SLOW_NODE, PRESSURE | BAD_PORT, "cpu"),
        (SLOW_NODE, BAD_PORT, "network/errors"),
        (in_forward, DROPS, "network/errors"),
        (SLOW_NODE, DAMAGED, "network/errors"),
        (SLOW_NODE, SLOW_PORT, "network/speed"),
        (in_forward, PORT_DOWN, "network/speed"),
        (SLOW_NODE, SLOW_ETH, "network/speed"),
        (SLOW_NODE, REPEATS, "network/retransmits"),
        (SLOW_NODE, CONGESTED, "network/congestion"),
        (in_forward, MARKED, "network/congestion"),
        (in_forward, DISK, "unknown"),
        (in_forward, {}, "unknown"),
        # Though all GPUs of the node have it, others do not.
        (in_forward, everywhere(FOREIGN, (0, 1)), "foreign_process"),
        (in_forward, everywhere(SLOW_CLOCK, (0, 1)), "slow_device/clocks"),
    ]

    assert_cases(tmp_path, cases)


def test_links_and_decoder_just_below_the_thresholds_are_not_the_cause(tmp_path: Path) -> None:
    """An error a second on a link, a hundredth sent again, a tenth waited for, nine decoded."""
    cases: list[Case] = [
        (H2D, just_below(AER, "+14") | just_below(REPLAYS, "+14"), "unknown"),
        (FORWARD, just_below(BAD_LINK, "+14"), "unknown"),
        (FORWARD, just_below(SLOWER_STATE, "0x3 2x37"), "slow_device/pstate"),
        (FORWARD, just_below(SLOWER_STATE, "0x5 2x35"), "unknown"),
        (FORWARD, SLOWER_STATE | {f"rankskew_gpu_utilization_ratio{{{GPU}}}": "0"}, "unknown"),
        (DATA, just_below(DECODES, "0.89"), "input"),
        (SLOW_NODE, just_below(DAMAGED, "+14"), "input"),
        (SLOW_NODE, just_below(REPEATS, "+1400"), "input"),
        (SLOW_NODE, REPEATS | FEW_SEGMENTS, "input"),
        (SLOW_NODE, just_below(CONGESTED, "+0.9e8"), "input"),
        (SLOW_NODE, just_below(MARKED, "+19000"), "input"),
    ]

    assert_cases(tmp_path, cases)


def test_links_explain_only_what_goes_over_them(tmp_path: Path) -> None:
    """A bad link delays no data, a busy decoder no forward pass, and a network no single rank."""
    cases: list[Case] = [
        (DATA, AER | BAD_LINK | SLOWER_STATE, "input"),
        (FORWARD, DECODES, "unknown"),
        (FORWARD, SLOW_PORT | REPEATS | CONGESTED | DAMAGED, "unknown"),
    ]

    assert_cases(tmp_path, cases)


def test_of_several_troubles_of_links_one_is_told(tmp_path: Path) -> None:
    """A lower speed before lost packets, those before waiting; a state before its clock."""
    cases: list[Case] = [
        (SLOW_NODE, SLOW_PORT | SLOW_ETH | BAD_PORT | REPEATS | CONGESTED, "network/speed"),
        (SLOW_NODE, BAD_PORT | REPEATS | CONGESTED, "network/errors"),
        (SLOW_NODE, REPEATS | CONGESTED | MARKED, "network/retransmits"),
        (SLOW_NODE, REPEATS | PRESSURE, "cpu"),
        (FORWARD, SLOWER_STATE | SLOW_CLOCK, "slow_device/pstate"),
        (H2D, NARROW | AER, "slow_device/pcie_link"),
        (DATA, DECODES | READS | SATURATED, "input/decoder"),
    ]

    assert_cases(tmp_path, cases)


def test_gpu_alone_on_its_node_is_in_a_state_that_saves_power(tmp_path: Path) -> None:
    """It has no neighbour to be slower than; P2 is usual for some models, P8 under load is not."""
    saving = just_below(SLOWER_STATE, "8")
    cases: list[Case] = [
        (FORWARD, of_node(saving, 1), "slow_device/pstate"),
        (FORWARD, of_node(SLOWER_STATE, 1), "unknown"),
    ]

    assert_cases(tmp_path, cases, nodes=4)


def test_what_is_slow_on_a_node_is_the_detail(tmp_path: Path) -> None:
    """A slow node has the clock, the memory, the disk or the file system that makes it slow."""
    in_forward = replace(SLOW_NODE, cost={"forward": 1.0})
    cases: list[Case] = [
        (in_forward, HOT_CPU, "cpu/thermal"),
        (SLOW_NODE, HOT_CPU, "cpu/thermal"),
        (in_forward, SLOW_CPU, "cpu/frequency"),
        (in_forward, NUMA_MISSES, "cpu/numa_miss"),
        (SLOW_NODE, BUSY_DISK, "input/disk"),
        (SLOW_NODE, SLOW_DISK, "input/disk"),
        (SLOW_NODE, SLOW_NFS, "input/nfs"),
        (SLOW_NODE, SLOW_LUSTRE, "input/lustre"),
        (
            Late({"data": 0.3, "checkpoint": 0.3, "forward": 0.4}, kind="node"),
            SLOW_NFS,
            "input/nfs",
        ),
        # What explains the rest is told: heat lowers the clock, and a low clock makes tasks wait.
        (in_forward, HOT_CPU | SLOW_CPU | PRESSURE, "cpu/thermal"),
        (in_forward, SLOW_CPU | PRESSURE | NUMA_MISSES, "cpu/frequency"),
        (in_forward, PRESSURE | NUMA_MISSES, "cpu"),
        (SLOW_NODE, SLOW_NFS | BUSY_DISK | DISK, "input/nfs"),
        (SLOW_NODE, BUSY_DISK | DISK | HOT_CPU, "input/disk"),
        (SLOW_NODE, SATURATED | BUSY_DISK, "input/workers"),
        # A checkpoint is certain, wherever it is written.
        (Late({"checkpoint": 1.0}, kind="node"), SLOW_NFS, "extra_duties/checkpoint"),
        # A disk delays no kernel.
        (in_forward, BUSY_DISK | SLOW_NFS, "unknown"),
    ]

    assert_cases(tmp_path, cases)


def test_node_just_below_the_thresholds_is_not_slow(tmp_path: Path) -> None:
    """A tenth of the time, 0.7 of the clock, 40 MB/s, 90 % of the time, 20 ms."""
    in_forward = replace(SLOW_NODE, cost={"forward": 1.0})
    few = {mounted("operations", NODE, NFS): "+10", mounted("operation_seconds", NODE, NFS): "+3.7"}
    cases: list[Case] = [
        (in_forward, just_below(HOT_CPU, "+1.4"), "unknown"),
        (in_forward, just_below(SLOW_CPU, "2200000000"), "unknown"),
        (in_forward, just_below(NUMA_MISSES, "+140000"), "unknown"),
        (SLOW_NODE, just_below(BUSY_DISK, "+13"), "input"),
        (SLOW_NODE, just_below(SLOW_DISK, "+29"), "input"),
        (SLOW_NODE, just_below(SLOW_NFS, "+29"), "input"),
        (SLOW_NODE, just_below(SLOW_LUSTRE, "+29"), "input"),
        # Long, but so few that hardly anybody waits.
        (SLOW_NODE, few, "input"),
    ]

    assert_cases(tmp_path, cases)


def test_slow_node_is_not_explained_by_what_most_nodes_have(tmp_path: Path) -> None:
    """A server that is slow for both nodes, or a single rank of one, makes none of them late."""
    odd = HOT_CPU | NUMA_MISSES | BUSY_DISK | SLOW_NFS
    shared = {k: v for node in (0, 1) for k, v in of_node(odd, node).items()}
    cases: list[Case] = [
        (SLOW_NODE, shared, "input"),
        (SLOW_NODE, of_node(SLOW_CPU, 1), "input"),
        (DATA, odd | SLOW_CPU, "input"),
        (FORWARD, odd | SLOW_CPU, "unknown"),
    ]

    assert_cases(tmp_path, cases)


def test_what_all_ranks_of_a_node_share_explains_no_single_one(tmp_path: Path) -> None:
    """A planted slow loader is the loader's, whatever presses the CPUs or disks of its node."""
    cases: list[Case] = [
        (DATA, PRESSURE | STOLEN | DISK | BAD_PORT, "input"),
        (FORWARD, PRESSURE | STOLEN | DISK | BAD_PORT, "unknown"),
    ]
    (tmp_path / "one").mkdir()

    assert_cases(tmp_path, cases)
    assert_cases(tmp_path / "one", cases, nodes=1)


def test_only_rank_on_a_node_is_explained_by_it(tmp_path: Path) -> None:
    """With a rank a node, what its node has and most others do not can be why it is late."""
    cases: list[Case] = [
        (DATA, of_node(DISK, 1), "input/storage"),
        (FORWARD, of_node(PRESSURE, 1), "cpu"),
        (FORWARD, of_node(PRESSURE, 1) | of_node(PRESSURE, 2), "cpu"),
        # Three of four nodes; and none of its own.
        (FORWARD, {k: v for n in (1, 2, 3) for k, v in of_node(PRESSURE, n).items()}, "unknown"),
        (FORWARD, of_node(PRESSURE | BAD_PORT, 3), "unknown"),
    ]

    assert_cases(tmp_path, cases, nodes=4)


def of_node(odd: Mapping[str, str], node: int) -> dict[str, str]:
    """Return *odd* of node 0 for another one."""
    return {name.replace('"jn0"', f'"jn{node}"'): value for name, value in odd.items()}


def test_of_several_causes_the_first_wins(tmp_path: Path) -> None:
    """Measured before seen, its own GPU before its node, its node before its stage."""
    cases: list[Case] = [
        (Late({"checkpoint": 0.6, "forward": 0.4}), COLLECTS, "extra_duties/checkpoint"),
        (FORWARD, COLLECTS | MORE_TOKENS, "gc"),
        (FORWARD, MORE_TOKENS | SLOW_CLOCK | FOREIGN, "uneven_batches"),
        (FORWARD, SLOW_CLOCK | FOREIGN, "slow_device/clocks"),
        (FORWARD, FOREIGN | NARROW | LINKS_DOWN, "foreign_process"),
        (replace(FORWARD, kind="node"), FAILED | PRESSURE, "slow_device/memory"),
        (OTHER, COLLECTS | PRESSURE, "gc"),
    ]

    assert_cases(tmp_path, cases)


def test_what_does_not_explain_it_is_not_its_cause(tmp_path: Path) -> None:
    """Something odd in the wrong place, or too little of it, is passed over."""
    cases: list[Case] = [
        # Nothing on the GPU makes data late.
        (DATA, MORE_TOKENS | SLOW_CLOCK | FOREIGN | NARROW | FAILED, "input"),
        # Less than half of what is to be explained.
        (replace(FORWARD, ratio=0.6), MORE_TOKENS | SLOW_CLOCK, "unknown"),
        (replace(FORWARD, ratio=0.6), COLLECTS, "unknown"),
        (Late({"forward": 0.4, "data": 0.6}), FOREIGN, "input"),
        (Late({"forward": 0.4, "data": 0.3, "other": 0.3}), FOREIGN, "unknown"),
    ]

    assert_cases(tmp_path, cases)


def everywhere(odd: Mapping[str, str], ranks: tuple[int, ...]) -> dict[str, str]:
    """Return *odd* of rank 1, its GPU and its node for each of *ranks* too."""
    return {
        name.replace('rank="1"', f'rank="{rank}"')
        .replace("GPU-1", f"GPU-{rank}")
        .replace("jn0", f"jn{rank // 2}"): value
        for name, value in odd.items()
        for rank in ranks
    }


def test_what_its_peers_have_too_is_not_its_cause(tmp_path: Path) -> None:
    """What three of four ranks, or both of two nodes, share makes none later than the others."""
    shared = [MORE_TOKENS, COLLECTS, SLOW_CLOCK, FOREIGN, NARROW, WRONG_CPUS]
    shared += [AER, REPLAYS, BAD_LINK, SLOWER_STATE]
    cases: list[Case] = [(FORWARD, everywhere(odd, (0, 1, 2)), "unknown") for odd in shared]
    cases.append((DATA, everywhere(DECODES, (0, 1, 2)), "input"))
    troubles = SLOW_PORT | SLOW_ETH | BAD_PORT | DAMAGED | REPEATS | CONGESTED | MARKED
    both = everywhere(DISK | PRESSURE | troubles, (0, 2))

    assert_cases(tmp_path, [*cases, (SLOW_NODE, both, "input")])


def test_evidence_that_began_with_the_lateness_counts_at_once(tmp_path: Path) -> None:
    """15 s after the onset a minute's mean shows a fourth of it, which is held against a fourth."""
    late = replace(FORWARD, since=END - 15)
    stepping = {f'rankskew_node_last_step_age_seconds{{{NODE},job_id="j"}}': "0.3"}
    tokens = {f"rankskew_tokens_total{{{WHO}}}": "0+30000x11 367500+37500x20"}
    clock = {f'rankskew_gpu_clock_hertz{{{GPU},clock="sm"}}': "1800x11 1440x20"}
    collects = {f"rankskew_gc_pause_seconds_total{{{WHO}}}": "0+0.1x11 4.1+3x20"}
    cases: list[Case] = [
        (late, stepping | tokens, "uneven_batches"),
        (late, stepping | clock, "slow_device/clocks"),
        (replace(late, cost={"other": 1.0}), stepping | collects, "gc"),
        # The evidence began with it, but is a tenth of it.
        (
            late,
            stepping | {f"rankskew_tokens_total{{{WHO}}}": "0+30000x11 360750+30750x20"},
            "unknown",
        ),
    ]

    assert_cases(tmp_path, cases, nodes=1)


def test_without_telemetry_there_still_is_one_cause(tmp_path: Path) -> None:
    """Where nothing is measured but the rank itself, its stage says what there is to say."""
    cases: list[Case] = [
        (FORWARD, {}, "unknown"),
        (H2D, {}, "unknown"),
        (DATA, {}, "input"),
        (OTHER, {}, "extra_duties/other"),
        (Late({"forward": 0.5, "data": 0.5}), {}, "input"),
        # Nobody is known to wait for it.
        (Late({"data": 0.0}, kind="unsynced"), {}, "input"),
    ]

    assert_cases(tmp_path, cases, telemetry=False)


def test_two_late_ranks_have_each_its_own_cause(tmp_path: Path) -> None:
    """Evidence of one rank, GPU, node or job says nothing about another."""
    first, second = FORWARD, replace(FORWARD, rank=3)
    elsewhere = replace(FORWARD, job_id="k")
    job = Nodes(
        (first, second, elsewhere), SLOW_CLOCK | everywhere(FOREIGN, (3,)), job_ids=("j", "k")
    )

    assert_causes(
        tmp_path,
        job,
        {first: "slow_device/clocks", second: "foreign_process", elsewhere: "unknown"},
    )


def test_job_of_that_name_in_another_cluster_has_its_own_cause(tmp_path: Path) -> None:
    """Neither its ranks, GPUs nor nodes are those of the other, though all have the same names."""
    here, there = Nodes((FORWARD,), SLOW_CLOCK), Nodes((FORWARD,), MORE_TOKENS)
    series = [*here.series(), *(of_cluster(each, "c") for each in there.series())]
    expected = {
        CAUSE + labels(FORWARD, "n0", "slow_device/clocks"): 1.0,
        CAUSE + labels(FORWARD, "n0", "uneven_batches").replace("{", '{cluster="c",'): 1.0,
    }

    assert_rules(tmp_path, series, [Expect(CAUSE, END, expected)], groups=GROUPS)


def of_cluster(series: dict[str, str], cluster: str) -> dict[str, str]:
    return {**series, "series": series["series"].replace("{", f'{{cluster="{cluster}",')}


def test_cause_of_pauses_stays_between_them(tmp_path: Path) -> None:
    """What halted a rank minutes ago is why it pauses; where it is late all the time it is not."""
    once = {f"rankskew_gc_pause_seconds_total{{{WHO}}}": "0 0 9x40"}
    cases: list[Case] = [
        (replace(OTHER, kind="pauses"), once, "gc"),
        (OTHER, once, "extra_duties/other"),
    ]

    assert_cases(tmp_path, cases)


def test_first_scrapes_of_a_job_have_a_cause(tmp_path: Path) -> None:
    """A job that is 15 s old has it as one of an hour has: two scrapes are enough."""
    job = Nodes((FORWARD,), MORE_TOKENS)
    young = Nodes((replace(FORWARD, job_id="k"),), {of_job(k, "k"): "+31000" for k in MORE_TOKENS})
    young = replace(young, job_ids=("k",))
    expected = {
        CAUSE + labels(FORWARD, "n0", "uneven_batches"): 1.0,
        # Not held against a part of the minute that there has not been yet.
        CAUSE + labels(young.late[0], "n0", "unknown"): 1.0,
    }

    series = [*job.series(), *young.series()]
    assert_rules(tmp_path, series, [Expect(CAUSE, 15, expected)], groups=GROUPS)


def test_two_ranks_on_one_gpu_with_several_faults_have_one_cause_each(tmp_path: Path) -> None:
    """Several ranks and facts of one GPU match; each rank is a foreign process to the other."""
    second = replace(FORWARD, rank=0)
    rank0 = WHO.replace('rank="1"', 'rank="0"')
    both = {f'rankskew_gpu_rank_info{{{rank0},gpu_uuid="GPU-1"}}': "1"}
    job = Nodes((FORWARD, second), NARROW | FAILED | both, nodes=1)

    assert_causes(tmp_path, job, {FORWARD: "foreign_process", second: "foreign_process"})


def test_healthy_job_has_neither_cause_nor_evidence(tmp_path: Path) -> None:
    """Nobody late: no series, however odd a GPU or a node is."""
    job = Nodes((), SLOW_CLOCK | FOREIGN | PRESSURE | BAD_PORT)
    none = Expect('{__name__=~"(rank_(cause|part)|page):.*(evidence|suspect|lost).*"}', END, {})

    assert_causes(tmp_path, job, {}, none)


def test_healthy_telemetry_leaves_no_trace(tmp_path: Path) -> None:
    """Ranks, GPUs and nodes of which nothing is odd record nothing to be read later."""
    levels = "rank|rank_cause|rank_part|node_cause|page|job_severity"
    odd = f'{{__name__=~"({levels}):.*",__name__!~".*_gpu:group"}}'

    assert_rules(tmp_path, Nodes(()).series(), [Expect(odd, END, {})], groups=GROUPS)


def test_every_cause_has_its_words(tmp_path: Path) -> None:
    """Each value of the label says what to do first and has a playbook page; if known, a text."""
    known = [cause for cause in CAUSES if cause != "unknown"]
    expected = [
        Expect(
            f"group by (cause) (rankskew:cause:text{{{matchers}}})",
            15,
            {f'{{cause="{cause}"}}': 1 for cause in causes},
        )
        for matchers, causes in (('first!=""', CAUSES), ('text!="",short!=""', known))
    ]

    assert_rules(tmp_path, Nodes(()).series(), expected, groups=GROUPS)
    playbook = Path(__file__).parents[2] / "docs" / "playbook"
    assert [cause for cause in CAUSES if not (playbook / f"{cause}.md").exists()] == []


def test_every_stage_has_its_words(tmp_path: Path) -> None:
    """A page says what a rank is slow at, whatever its stage is called."""
    words = Expect(
        'group by (stage) (rankskew:stage:text{text!=""})',
        15,
        {f'{{stage="{stage}"}}': 1 for stage in STAGES if stage != "sync"},
    )

    assert_rules(tmp_path, Nodes(()).series(), [words], groups=GROUPS)
