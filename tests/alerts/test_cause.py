"""Each named rank has one cause: what the evidence says together with where it is late."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.alerts.jobs import Fault, Job, input_series, simulate
from tests.alerts.promtool import Expect, assert_rules

GROUPS = ["thresholds", "hardware", "pcie", "evidence", "cause"]
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
# Two minutes and more: the longest window.
END = 180.0
CAUSE = "rank:rankskew_cause:info"
EVIDENCE = "rank_cause:rankskew_evidence:ratio"


@dataclass(frozen=True)
class Late:
    """What the rules of straggler.yaml say of a named rank: *cost* in GPUs, by stage."""

    cost: Mapping[str, float] = field(hash=False)
    ratio: float | None = 0.25
    rank: int = 1
    job_id: str = "j"


@dataclass(frozen=True)
class Nodes:
    """Four ranks, two a node of its own pair, and what their node exporters say of them.

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
        values = [
            (f'job:rankskew_ranks:count{{job_id="{job_id}"}}', str(RANKS)),
            (f'group:rankskew_ranks:count{{job_id="{job_id}",peer_group="all"}}', str(RANKS)),
        ]
        values += [
            (
                f'job_node:rankskew_ranks:count{{job_id="{job_id}",instance="{job_id}n{node}"}}',
                str(RANKS // self.nodes),
            )
            for node in range(self.nodes)
        ]
        for rank in range(RANKS):
            who = self._rank(job_id, rank)
            values += [
                (f"rankskew_rank_info{{{who}}}", "1"),
                (f"rankskew_steps_total{{{who}}}", "+30"),
                (f"rankskew_busy_seconds_total{{{who}}}", "+12"),
            ]
        for late in self.late:
            if late.job_id == job_id:
                who = self._rank(job_id, late.rank)
                cost = sum(late.cost.values())
                values.append((f"rank:rankskew_gpus_lost:mean1m{{{who}}}", str(cost)))
                if late.ratio is not None:
                    values.append((f"rank:rankskew_late_ratio:mean1m{{{who}}}", str(late.ratio)))
                values += [
                    (f'rank_stage:rankskew_gpus_lost:mean1m{{{who},stage="{stage}"}}', str(gpus))
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
                    (f'rank:rankskew_gpu:group{{{who},gpu_uuid="GPU-{rank}"}}', "1"),
                    (f"rankskew_tokens_total{{{who}}}", "+30000"),
                    (f"rankskew_gc_pause_seconds_total{{{who}}}", "+0.1"),
                    (f"rankskew_rank_numa_local{{{who}}}", "1"),
                    (f'rankskew_gpu_clock_hertz{{{gpu},clock="sm"}}', "1800"),
                    (throttle(gpu, "sw_power_cap"), "+15"),
                    (f"rankskew_gpu_pcie_link_width{{{gpu}}}", "16"),
                    (f"rankskew_gpu_pcie_link_width_max{{{gpu}}}", "16"),
                    (f"rankskew_gpu_nvlink_links{{{gpu}}}", "18"),
                    (f"rankskew_gpu_nvlink_links_up{{{gpu}}}", "18"),
                    (f"rankskew_gpu_utilization_ratio{{{gpu}}}", "1"),
                    (f"rankskew_gpu_row_remap_pending{{{gpu}}}", "0"),
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
                    (f'rankskew_infiniband_rate_bytes_per_second{{{node},port="1"}}', "25e9"),
                    (f'rankskew_infiniband_rate_bytes_per_second{{{node},port="2"}}', "0"),
                    (f'rankskew_infiniband_errors_total{{{node},port="1"}}', "+0"),
                ]
        return values


def spaceless(series: str) -> str:
    return series.replace(", ", ",")


def notation(value: str) -> str:
    """Return promtool's notation of ten minutes: constant, or growing from 0."""
    return f"0{value}x40" if value.startswith("+") else f"{value}x40"


def throttle(gpu: str, reason: str) -> str:
    return f'rankskew_gpu_throttle_seconds_total{{{gpu},reason="{reason}"}}'


def pressure(node: str, resource: str) -> str:
    return f'rankskew_node_pressure_waiting_seconds_total{{{node},resource="{resource}"}}'


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
H2D = Late({"h2d": 1.0})

WHO = 'job_id="j",peer_group="all",rank="1",instance="jn0"'
GPU = 'instance="jn0",gpu_uuid="GPU-1"'
NODE = 'instance="jn0"'
CPU = f'rankskew_node_cpu_seconds_total{{{NODE},numa_node="0",mode='

# A quarter late, so a quarter more work, or a clock lower by a fifth, explains all of it.
MORE_TOKENS = {f"rankskew_tokens_total{{{WHO}}}": "+37500"}
COLLECTS = {f"rankskew_gc_pause_seconds_total{{{WHO}}}": "+2.2"}
SLOW_CLOCK = {f'rankskew_gpu_clock_hertz{{{GPU},clock="sm"}}': "1440"}
HOT = SLOW_CLOCK | {throttle(GPU, "hw_thermal_slowdown"): "+5", throttle(GPU, "hw_slowdown"): "+9"}
BRAKED = {throttle(GPU, "hw_slowdown"): "+5"}
CLOCKS_SET = {throttle(GPU, "applications_clocks_setting"): "+15"}
FOREIGN = {f"rankskew_gpu_foreign_processes{{{GPU}}}": "2"}
NARROW = {f"rankskew_gpu_pcie_link_width{{{GPU}}}": "8"}
LINKS_DOWN = {f"rankskew_gpu_nvlink_links_up{{{GPU}}}": "16"}
REMAPPED = {f"rankskew_gpu_row_remap_pending{{{GPU}}}": "1"}
FAILED = {f"rankskew_gpu_row_remap_failed{{{GPU}}}": "1"}
WRONG_CPUS = {f"rankskew_rank_numa_local{{{WHO}}}": "0"}
PRESSURE = {pressure(NODE, "cpu"): "+9"}
STOLEN = {f'{CPU}"steal"}}': "+100"}
DISK = {pressure(NODE, "io"): "+9"}
WAITS = {pressure(NODE, "io"): "_", f'{CPU}"iowait"}}': "+30"}
PORT_DOWN = {f'rankskew_infiniband_rate_bytes_per_second{{{NODE},port="1"}}': "0"}
BAD_PORT = {f'rankskew_infiniband_errors_total{{{NODE},port="1"}}': "+60"}
DROPS = {
    f'rankskew_node_network_{way}_drops_total{{{NODE},device="eth0"}}': "+60"
    for way in ("receive", "transmit")
}


def test_evidence_and_stage_make_the_cause(tmp_path: Path) -> None:
    """A late rank of which one thing is odd has that for its cause."""
    cases: list[Case] = [
        (FORWARD, MORE_TOKENS, "uneven_batches/tokens"),
        (FORWARD, HOT, "slow_device/hw_thermal_slowdown"),
        (FORWARD, SLOW_CLOCK | {throttle(GPU, "sw_power_cap"): "+0"}, "slow_device/clocks"),
        (FORWARD, SLOW_CLOCK, "slow_device/sw_power_cap"),
        (FORWARD, SLOW_CLOCK | BRAKED, "slow_device/hw_slowdown"),
        (FORWARD, SLOW_CLOCK | CLOCKS_SET, "slow_device/applications_clocks_setting"),
        (H2D, NARROW, "slow_device/pcie_link"),
        (FORWARD, LINKS_DOWN, "slow_device/nvlink"),
        (FORWARD, REMAPPED, "slow_device/ecc"),
        (FORWARD, FAILED, "slow_device/ecc"),
        (FORWARD, FOREIGN, "foreign_process"),
        (OTHER, PRESSURE, "cpu/pressure"),
        (FORWARD, STOLEN, "cpu/steal"),
        (OTHER, WRONG_CPUS, "cpu/numa"),
        (DATA, DISK, "input/storage"),
        (DATA, WAITS, "input/storage"),
        (DATA, {}, "input/loader"),
        (OTHER, COLLECTS, "gc"),
        (Late({"checkpoint": 1.0}), {}, "extra_duties/checkpoint"),
        (Late({"eval": 0.4, "checkpoint": 0.3, "data": 0.3}), {}, "extra_duties/eval"),
        (OTHER, {}, "extra_duties/other"),
        (DATA, PORT_DOWN, "network/link_down"),
        (OTHER, BAD_PORT, "network/errors"),
        (DATA, DROPS, "network/errors"),
        (FORWARD, {}, "unknown"),
    ]

    assert_cases(tmp_path, cases)


def test_of_several_causes_the_first_wins(tmp_path: Path) -> None:
    """Measured before seen, its own GPU before its node, its node before its stage."""
    cases: list[Case] = [
        (Late({"checkpoint": 0.6, "forward": 0.4}), COLLECTS, "extra_duties/checkpoint"),
        (FORWARD, COLLECTS | MORE_TOKENS, "gc"),
        (FORWARD, MORE_TOKENS | HOT | FOREIGN, "uneven_batches/tokens"),
        (FORWARD, HOT | FOREIGN, "slow_device/hw_thermal_slowdown"),
        (FORWARD, FOREIGN | NARROW, "foreign_process"),
        (FORWARD, NARROW | LINKS_DOWN | REMAPPED, "slow_device/pcie_link"),
        (FORWARD, LINKS_DOWN | REMAPPED, "slow_device/nvlink"),
        (FORWARD, REMAPPED | PRESSURE, "slow_device/ecc"),
        (DATA, DISK | PRESSURE, "input/storage"),
        (DATA, STOLEN | PRESSURE | WRONG_CPUS, "cpu/steal"),
        (DATA, PRESSURE | BAD_PORT, "cpu/pressure"),
        (DATA, BAD_PORT | PORT_DOWN, "network/link_down"),
        (OTHER, BAD_PORT, "network/errors"),
    ]

    assert_cases(tmp_path, cases)


def test_what_does_not_explain_it_is_not_its_cause(tmp_path: Path) -> None:
    """Something odd in the wrong place, or too little of it, is passed over."""
    cases: list[Case] = [
        # Nothing on the GPU makes data late, and no disk makes a forward late.
        (DATA, MORE_TOKENS | HOT | FOREIGN | NARROW | REMAPPED, "input/loader"),
        (FORWARD, DISK, "unknown"),
        # Less than half of what is to be explained.
        (Late({"forward": 1.0}, ratio=0.6), MORE_TOKENS | HOT, "unknown"),
        (Late({"forward": 1.0}, ratio=0.6), COLLECTS, "unknown"),
        (Late({"forward": 0.4, "data": 0.6}), FOREIGN, "input/loader"),
        (Late({"forward": 0.4, "data": 0.3, "other": 0.3}), FOREIGN, "unknown"),
        # Odd is a node, and the rank is on another one.
        (FORWARD, everywhere(PRESSURE | BAD_PORT, (3,)), "unknown"),
        # Throttled, yet as fast as its peers.
        (FORWARD, {throttle(GPU, "hw_thermal_slowdown"): "+9"}, "unknown"),
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
    shared = [MORE_TOKENS, COLLECTS, HOT, FOREIGN, NARROW, WRONG_CPUS, PRESSURE, BAD_PORT]
    cases: list[Case] = [(FORWARD, everywhere(odd, (0, 1, 2)), "unknown") for odd in shared]

    assert_cases(tmp_path, [*cases, (DATA, everywhere(DISK, (0, 2)), "input")])


def test_only_node_of_a_job_is_its_own_yardstick(tmp_path: Path) -> None:
    """With one node there is no other to compare with, so pressure counts as it is."""
    cases: list[Case] = [(DATA, DISK, "input/storage"), (DATA, PRESSURE, "cpu/pressure")]

    assert_cases(tmp_path, cases, nodes=1)


def test_without_telemetry_there_still_is_one_cause(tmp_path: Path) -> None:
    """Where nothing is measured but the rank itself, its stage says what there is to say."""
    cases: list[Case] = [
        (FORWARD, {}, "unknown"),
        (H2D, {}, "unknown"),
        (DATA, {}, "input"),
        (OTHER, {}, "extra_duties/other"),
        (Late({"forward": 1.0}, ratio=None), {}, "unknown"),
        (Late({"forward": 0.5, "data": 0.5}), {}, "input"),
        (Late({}), {}, "unknown"),
    ]

    assert_cases(tmp_path, cases, telemetry=False)


def test_samples_count_where_tokens_do_not(tmp_path: Path) -> None:
    """More samples are uneven batches only in a job that counts no tokens: they may be short."""
    who = [f'job_id="j",peer_group="all",rank="{r}",instance="jn{r // 2}"' for r in range(RANKS)]
    samples = {f"rankskew_samples_total{{{w}}}": "+375" if w == WHO else "+300" for w in who}

    assert_cases(tmp_path, [(FORWARD, samples, "uneven_batches/samples")], telemetry=False)
    assert_cases(tmp_path, [(FORWARD, samples, "unknown")])


def test_cost_stands_in_for_how_late_a_rank_is(tmp_path: Path) -> None:
    """A rank that only the join names is held against what it costs: a GPU of three that wait."""
    late = Late({"forward": 1.0}, ratio=None)
    strength = Expect(
        f'{EVIDENCE}{{cause="uneven_batches"}}',
        END,
        {EVIDENCE + labels(late, "n0", "uneven_batches/tokens"): 0.75},
    )

    assert_causes(tmp_path, Nodes((late,), MORE_TOKENS), {late: "uneven_batches/tokens"}, strength)


def test_two_named_ranks_have_each_its_own_cause(tmp_path: Path) -> None:
    """Evidence of one rank, GPU, node or job says nothing about another."""
    first, second = FORWARD, Late({"data": 1.0}, rank=3)
    elsewhere = Late({"forward": 1.0}, job_id="k")
    job = Nodes((first, second, elsewhere), HOT | everywhere(DISK, (3,)), job_ids=("j", "k"))

    assert_causes(
        tmp_path,
        job,
        {first: "slow_device/hw_thermal_slowdown", second: "input/storage", elsewhere: "unknown"},
    )


def test_two_ranks_on_one_gpu_with_several_faults_have_one_cause_each(tmp_path: Path) -> None:
    """Several ranks and several facts for one GPU match."""
    second = Late({"forward": 1.0}, rank=0)
    rank0 = WHO.replace('rank="1"', 'rank="0"')
    both = {f'rank:rankskew_gpu:group{{{rank0},gpu_uuid="GPU-1"}}': "1"}
    job = Nodes((FORWARD, second), NARROW | FOREIGN | REMAPPED | both)

    assert_causes(tmp_path, job, {FORWARD: "foreign_process", second: "foreign_process"})


def test_healthy_job_has_neither_cause_nor_evidence(tmp_path: Path) -> None:
    """Nobody named: no series, however odd a GPU or a node is."""
    job = Nodes((), HOT | FOREIGN | PRESSURE | BAD_PORT)
    none = Expect('{__name__=~"rank_(cause|part):.*(evidence|suspect|lost).*"}', END, {})

    assert_causes(tmp_path, job, {}, none)


def test_healthy_telemetry_leaves_no_trace(tmp_path: Path) -> None:
    """Ranks, GPUs and nodes of which nothing is odd record nothing to be read later."""
    odd = '{__name__=~".*(fact|excess_ratio|deficit_ratio|throttle_reason).*"}'

    assert_rules(tmp_path, Nodes(()).series(), [Expect(odd, END, {})], groups=GROUPS)


def test_rank_with_two_slow_gpus_has_the_slower_one_for_its_cause(tmp_path: Path) -> None:
    """Several GPUs of a rank, each with a reason of its own, do not make several causes."""
    gpu = GPU.replace("GPU-1", "GPU-9")
    second = {
        f'rank:rankskew_gpu:group{{{WHO},gpu_uuid="GPU-9"}}': "1",
        f'rankskew_gpu_clock_hertz{{{gpu},clock="sm"}}': "1560",
        throttle(gpu, "sw_thermal_slowdown"): "+9",
    }

    assert_cases(tmp_path, [(FORWARD, HOT | second, "slow_device/hw_thermal_slowdown")])


def test_every_cause_has_its_words(tmp_path: Path) -> None:
    """Each value of the label has a sentence for the alert's text, and each a runbook section."""
    words = Expect(
        "group by (cause) (rankskew:cause:text)",
        15,
        {f'{{cause="{cause}"}}': 1 for cause in CAUSES},
    )

    assert_rules(tmp_path, Nodes(()).series(), [words], groups=GROUPS)
    runbook = (Path(__file__).parents[2] / "alerts/runbooks/RankskewStraggler.md").read_text()
    assert [cause for cause in CAUSES if f"\n#### {cause}\n" not in runbook] == []


@pytest.mark.parametrize("ranks", [2, 8])
def test_named_ranks_of_simulated_jobs_have_one_cause_at_all_times(
    tmp_path: Path, ranks: int
) -> None:
    """From the first evaluation that names a rank to the last, it has exactly one cause."""
    late = Fault(0, "data", 0.5, end_seconds=130)
    job = Job(ranks=ranks, seed=5, seconds=240, faults=(late, Fault(ranks - 1, "forward", 0.25)))
    who = "job_id, peer_group, rank, instance"
    named, caused = "rank:rankskew_gpus_lost:mean1m", CAUSE
    count = f"count by ({who}) ({caused} and on ({who}) {named})"

    assert_rules(
        tmp_path,
        input_series(job, simulate(job)),
        [
            Expect(
                f"count_over_time((({named} unless on ({who}) {count} == 1))[240s:15s])", 240, {}
            ),
            Expect(
                f"group by (rank, cause) (last_over_time({caused}[240s]))",
                240,
                {
                    '{rank="0",cause="input"}': 1,
                    f'{{rank="{ranks - 1}",cause="unknown"}}': 1,
                },
            ),
        ],
    )
