"""How much of an excess a row accounts for, from what difference on, and what is said of it."""

import math
from collections.abc import Mapping

import pytest

from exporter.causes.excess import excess_of, stage_figure
from exporter.causes.explain import explain_change
from exporter.causes.model import Evidence, Lateness, Quantiles, ThreadState
from exporter.causes.row import CauseRow, Certainty
from exporter.causes.shares import (
    Share,
    has_less,
    has_more,
    is_in_state,
    is_in_state_like_peers,
    more_work,
    slower,
    unless,
    waits,
)
from exporter.causes.units import pair, text
from rank_probe.judge.verdict import PERSISTENT
from tests.exporter.causes.planted import (
    LINE,
    at,
    case_in,
    evidence,
    found,
    lateness,
    peers,
    told_of,
    why,
)

LATE = Lateness("data", PERSISTENT, 0.25, {"data": 0.6, "forward": 0.2})
STAGE_PEERS = {
    "data_seconds": Quantiles(0.02, 0.3, 0.4),
    "forward_seconds": Quantiles(0.1, 0.11, 0.12),
}
SOME = {**STAGE_PEERS, "checkpoint_seconds": Quantiles(0.0, 0.0, 0.1)}
NOTHING = {"data_seconds": Quantiles(0.0, 0.0, 0.0)}
JUDGED = {"data": 0.075, "forward": 0.025}


@pytest.mark.parametrize(
    ("own", "peers", "more", "step", "alone"),
    [
        # Over the better third: most peers may be late too. Less in a stage does not make up.
        ({"data": 0.2, "forward": 0.09}, STAGE_PEERS, {"data": 0.18}, 0.29, set()),
        # A step is as long as was measured, with the wait for others.
        ({"data": 0.2, "forward": 0.1, "step": 0.5}, STAGE_PEERS, {"data": 0.18}, 0.5, set()),
        ({"data": 0.2, "forward": 0.1, "step": 0.1}, STAGE_PEERS, {"data": 0.18}, 0.3, set()),
        # A stage that no peer has is its alone; one that some of them have is not.
        (
            {"data": 0.02, "eval": 0.1, "checkpoint": 0.1},
            SOME,
            {"eval": 0.1, "checkpoint": 0.1},
            0.22,
            {"eval"},
        ),
        # Without peers a fifth of its time is excess if it takes a quarter more: so says the judge.
        ({"data": 0.3, "forward": 0.2}, {}, JUDGED, 0.5, set()),
        ({"data": 0.3, "forward": 0.2}, NOTHING, JUDGED, 0.5, set()),
        # So is a rank late that is no slower by its own times: its peers' may be of another minute.
        (
            {"data": 0.02, "forward": 0.1},
            STAGE_PEERS,
            {"data": 0.75 * 0.12 * 0.2, "forward": 0.25 * 0.12 * 0.2},
            0.12,
            set(),
        ),
    ],
)
def test_it_is_the_time_beyond_the_peers_or_else_what_the_judge_knows(
    own: dict[str, float],
    peers: dict[str, Quantiles],
    more: dict[str, float],
    step: float,
    alone: set[str],
) -> None:
    found = excess_of(LATE, {f"{stage}_seconds": each for stage, each in own.items()}, peers)

    assert found.more == pytest.approx(more)
    assert found.total == pytest.approx(sum(more.values()))
    assert found.step == pytest.approx(step)
    assert found.alone == alone
    assert found.in_seconds


def test_without_any_times_its_step_is_one() -> None:
    """Shares need no seconds. A cost that makes no sense leaves the stage that is named."""
    found = excess_of(LATE, {}, {})
    assert found.more == pytest.approx({"data": 0.15, "forward": 0.05})
    assert found.own == pytest.approx({"data": 0.75, "forward": 0.25})
    assert not found.in_seconds

    for ratio in (0.0, -1.0, math.nan, math.inf):
        late = Lateness("backward", PERSISTENT, ratio, {"data": math.nan, "eval": -1.0})
        assert excess_of(late, {}, {}).more == {"backward": pytest.approx(0.03 / 1.03)}


FIGURE = "gc_ratio"


def accounted(
    share: Share,
    own: float | None,
    peers: float | None,
    *,
    healthy: float | None = None,
    more: Mapping[str, float] | None = None,
    states: tuple[ThreadState, ...] = (),
) -> float:
    """Return the share of a rank's excess: 300 ms in its stages, of which 100 are too much.

    In data it takes as much as its peers, 100 ms; a step takes 400.
    """
    figures = {"forward_seconds": 0.2, "backward_seconds": 0.1, "data_seconds": 0.1, **(more or {})}
    usual = {
        stage_figure(stage): Quantiles(seconds, seconds + 1, seconds + 2)
        for stage, seconds in (("forward", 0.14), ("backward", 0.06), ("data", 0.1))
    }
    if peers is not None:
        usual[FIGURE] = Quantiles(peers, peers, peers)
    if own is not None:
        figures[FIGURE] = own
    late = Lateness("forward", PERSISTENT, 0.3, {})
    case = case_in(late, Evidence(figures, states), usual)
    row = CauseRow(
        cause="c",
        certainty=Certainty.AMOUNT,
        figure=FIGURE,
        stages=("forward", "backward"),
        states=frozenset({"running"}),
        share=share,
        says="",
        first_action="",
        healthy=healthy,
    )
    return share(row, case)


WAITS, SLOWER, MORE_WORK = waits(0.05), slower(0.02), more_work(0.02)
HAS_MORE, HAS_LESS = has_more(1, at_least=3), has_less(0.5, at_most=0.05)


@pytest.mark.parametrize(
    ("share", "own", "peers", "expected"),
    [
        # A fifth of a step of 400 ms, more than its peers, is 80 of 100 ms.
        (WAITS, 0.22, 0.02, 0.8),
        (WAITS, 0.2, 0.2, 0.0),
        (WAITS, 0.055, 0.01, 0.0),
        (WAITS, 0.2, None, 0.0),
        (WAITS, None, 0.0, 0.0),
        # No number is no evidence.
        (WAITS, math.nan, 0.0, 0.0),
        (WAITS, 0.5, math.nan, 0.0),
        # A fifth of the speed is missing in 300 ms: without that they are 240.
        (SLOWER, 80, 100, 0.6),
        (SLOWER, 50, 100, 1.0),
        (SLOWER, 100, 80, 0.0),
        (SLOWER, 50, None, 0.0),
        (SLOWER, 0, 100, 1.0),
        # A fifth of its work is more than its peers'.
        (MORE_WORK, 125, 100, 0.6),
        (MORE_WORK, 200, 100, 1.0),
        (MORE_WORK, 5, 0, 0.0),
        (MORE_WORK, 5, None, 0.0),
        # A fact may cost all of it, if it is more than its peers', and much.
        (HAS_MORE, 5, 0, 1.0),
        (HAS_MORE, 5, 4.5, 0.0),
        (HAS_MORE, 2.9, 0, 0.0),
        (HAS_MORE, 5, None, 0.0),
        # And so may a lack, if it has less than its peers, and little.
        (HAS_LESS, 0.04, 1, 1.0),
        (HAS_LESS, 0.06, 1, 0.0),
        (HAS_LESS, 0.04, 0.08, 0.0),
        (HAS_LESS, 0.04, None, 0.0),
    ],
)
def test_figure_accounts_for_a_share(
    share: Share, own: float | None, peers: float | None, expected: float
) -> None:
    """Of the excess, by how much it differs from the peers' figure."""
    assert accounted(share, own, peers) == pytest.approx(expected)


def test_better_figure_replaces_a_worse_one() -> None:
    """If it is known of both, the rank and its peers; without peers a healthy rank is compared."""
    unknown = unless("h2d_seconds", has_more(1))
    assert accounted(unless("data_seconds", has_more(1)), 5, 0) == 0
    assert accounted(unknown, 5, 0) == 1
    assert accounted(unknown, 5, 0, more={"h2d_seconds": 0.0}) == 1

    assert accounted(WAITS, 0.2, None, healthy=0.0) == pytest.approx(0.8)
    assert accounted(WAITS, 0.2, 0.2, healthy=0.0) == 0


def test_state_accounts_for_its_time_up_to_the_excess() -> None:
    """150 of 200 ms are more than the excess there, which is 60 of 100."""
    runs = (ThreadState("forward", "running", 0.75),)

    assert accounted(is_in_state, None, None, states=runs) == pytest.approx(0.6)
    assert accounted(is_in_state_like_peers, None, None, states=runs) == pytest.approx(0.6 * 0.3)
    assert accounted(is_in_state, None, None) == 0


@pytest.mark.parametrize(
    ("states", "share"),
    [
        # 70 of 140 ms: its peers may sleep for 40, and the excess is 100.
        ({"sleep": 0.5}, 0.3),
        ({"sleep": 0.25}, 0.0),
        # 126 ms: 14 ms are not sleep, so that 86 of the excess are.
        ({"sleep": 0.9}, 0.86),
        ({"sleep": 1.0}, 1.0),
        # Rounded shares, or those of two moments, cannot explain more than there is.
        ({"sleep": 1.0, "running": 1.0}, 0.3),
        ({"sleep": math.nan, "running": -1.0}, 0.0),
    ],
)
def test_only_what_exceeds_all_of_its_peers_time_is_certain(
    states: dict[str, float], share: float
) -> None:
    """If it does nothing else than sleep, the excess is sleep all the same."""
    late, said = lateness({"data": 0.2}), evidence({"data": 0.2}, {}, at("data", LINE, **states))
    found = case_in(late, said, peers())
    certain = found.spent_for_certain(("data",), frozenset({"sleep"}))

    assert found.share(certain) == pytest.approx(share, abs=0.03)


def test_place_is_that_which_costs_most() -> None:
    """And its time is all of that in the stage."""
    states = at("data", "b", sleep=0.3) + at("data", "a", sleep=0.4) + at("forward", "c", sleep=1.0)
    extra = {"data": 0.2, "forward": 0.1}
    found = case_in(lateness(extra), evidence(extra, {}, states), peers())

    stage, place, seconds = found.where(("data", "forward"), frozenset({"sleep"}))
    assert (stage, place) == ("data", "a")
    assert seconds == pytest.approx(0.7 * 0.14)
    assert found.where(("eval",), frozenset({"sleep"})) == ("", "", 0.0)


@pytest.mark.parametrize(
    ("figure", "below", "over", "extra"),
    [
        ("cpu_quota_throttled_ratio", 0.05, 0.055, {"forward": 0.05}),
        ("main_run_queue_ratio", 0.024, 0.026, {"forward": 0.02}),
        ("workers_run_queue_ratio", 0.028, 0.032, {"data": 0.02}),
        ("cpus_near_gpu_ratio", 0.06, 0.04, {"forward": 0.1}),
        ("node_cpu_throttled_ratio", 0.09, 0.11, {"forward": 0.1}),
        ("node_cpu_clock_hertz", 3.1e9 * 0.72, 3.1e9 * 0.69, {"forward": 0.1}),
        ("node_steal_cpus", 0.4, 0.6, {"forward": 0.1}),
        ("node_cpu_waiting_ratio", 0.24, 0.27, {"forward": 0.1}),
        ("node_numa_misses_per_second", 9_000, 11_000, {"forward": 0.1}),
        ("sm_clock_hertz", 1.95e9 * 0.99, 1.95e9 * 0.98, {"forward": 0.01}),
        ("memory_clock_hertz", 2.619e9 * 0.99, 2.619e9 * 0.98, {"forward": 0.01}),
        ("gpu_foreign_processes", 0.4, 0.6, {"forward": 0.1}),
        ("gpu_memory_faults", 0.4, 0.6, {"forward": 0.1}),
        ("pcie_link_bytes_per_second", 63e9 * 0.91, 63e9 * 0.89, {"h2d": 0.1}),
        ("pcie_errors_per_second", 0.9, 1.1, {"h2d": 0.1}),
        ("nvlink_links_up", 17.95, 17.0, {"forward": 0.1}),
        ("nvlink_errors_per_second", 0.9, 1.1, {"forward": 0.1}),
        ("gpu_decoder_ratio", 0.89, 0.91, {"data": 0.1}),
        ("read_bytes_per_second", 20e6, 22e6, {"data": 0.1}),
        ("major_faults_per_second", 99, 101, {"data": 0.1}),
        ("io_waiting_ratio", 0.24, 0.27, {"data": 0.1}),
        ("saturated_workers", 0.4, 0.6, {"data": 0.1}),
        ("node_disk_busy_ratio", 0.89, 0.91, {"data": 0.1}),
        ("node_disk_read_seconds", 0.02, 0.021, {"data": 0.1}),
        ("node_mount_operation_seconds", 0.02, 0.021, {"data": 0.1}),
        ("node_io_waiting_ratio", 0.24, 0.27, {"data": 0.1}),
        ("node_network_link_bytes_per_second", 50e9 * 0.91, 50e9 * 0.89, {"data": 0.1}),
        ("node_network_errors_per_second", 0.9, 1.1, {"data": 0.1}),
        ("node_tcp_retransmitted_ratio", 0.009, 0.011, {"data": 0.1}),
        ("node_network_waiting_ratio", 0.1, 0.12, {"data": 0.1}),
        ("gc_ratio", 0.011, 0.013, {"other": 0.01}),
        ("tokens_per_step", 8192 * 1.014, 8192 * 1.016, {"forward": 0.002}),
    ],
)
def test_little_is_nothing(figure: str, below: float, over: float, extra: dict[str, float]) -> None:
    """Each row has a least difference from the peers, which a healthy rank may have."""
    assert found(extra, {figure: below}, of_node=True).figure != figure
    assert found(extra, {figure: over}, of_node=True).figure == figure


@pytest.mark.parametrize(
    ("figure", "usual", "own", "stage"),
    [
        ("main_run_queue_ratio", 0.2, 0.29, "forward"),
        ("workers_run_queue_ratio", 0.2, 0.29, "data"),
        ("gpu_decoder_ratio", 0.85, 0.94, "data"),
        ("node_disk_busy_ratio", 0.75, 0.99, "data"),
    ],
)
def test_hardly_more_than_peers_have_is_nothing(
    figure: str, usual: float, own: float, stage: str
) -> None:
    """Where all have much of it, they differ by as much."""
    for peers_have, is_told in ((usual, False), (usual / 2, True)):
        others = {figure: peers_have, "main_running_ratio": 0.9}
        said = found({stage: 0.1}, {figure: own}, usual=others, of_node=True)
        assert (said.figure == figure) is is_told


OF_GPU = told_of("slow_device", "foreign_process", "cpu numa")
OF_STORAGE = told_of("input reads", "input disk", "input nfs", "input storage")


@pytest.mark.parametrize(
    ("figures", "stages"),
    [
        (OF_GPU, ("data", "other", "eval")),
        (OF_STORAGE, ("forward", "backward", "optimizer")),
        ({"gpu_decoder_ratio": 0.99, "saturated_workers": 2.0}, ("forward", "other")),
        ({"workers_run_queue_ratio": 0.9}, ("forward", "other")),
        ({"tokens_per_step": 3e5, "samples_per_step": 900.0}, ("data", "optimizer", "other")),
    ],
)
def test_figure_explains_no_stage_that_it_cannot_delay(
    figures: dict[str, float], stages: tuple[str, ...]
) -> None:
    """A GPU does not delay batches, a loader no backward pass."""
    usual: dict[str, float | None] = {"eval_seconds": 0.1, "tokens_per_step": 8192.0}
    for name, value in figures.items():
        for stage in stages:
            said = found({stage: 0.5}, {name: value}, usual=usual, of_node=True)
            assert said.figure != name, (name, stage)


FACTS = {"node_mount_operation_seconds": "/data (nfs4)", "node_disk_busy_ratio": "nvme0n1"}


# The stage, the figure before and now, the cause, its detail and the sentence that says it.
CHANGES = """
data node_mount_operation_seconds 0.001 0.04 input nfs \
an operation on a file system, `/data (nfs4)`, takes 40 ms, before 1
data node_disk_busy_ratio 0.3 0.98 input disk \
a disk, nvme0n1, is busy 98 % of the time, before 30 %
checkpoint node_io_waiting_ratio 0.1 0.5 storage storage \
tasks on the node wait for storage 50 % of the time, before 10 %
sync node_tcp_retransmitted_ratio 0.0001 0.03 network retransmits \
the node retransmits 3 % of its TCP segments, before 0.01 %
backward node_cpu_clock_hertz 3.1e9 1.2e9 cpu frequency \
busy CPUs run at 1.20 GHz, before at 3.10
forward memory_clock_hertz 2.6e9 1.6e9 slow_device pstate \
the GPUs' memory clock is 1.60 GHz, before 2.60
"""


@pytest.mark.parametrize("change", CHANGES.strip().splitlines())
def test_cause_of_a_change_and_its_sentence(change: str) -> None:
    """Both figures, of now and before, and what they are of."""
    stage, figure, before, now, cause, detail, sentence = change.split(" ", 6)
    found = explain_change(stage, 1.5, {figure: float(now)}, {figure: float(before)}, FACTS)

    assert found is not None
    assert (found.cause, found.detail, found.sentence) == (cause, detail, sentence)
    assert found.first_action == ""


@pytest.mark.parametrize(
    ("stage", "figure", "before", "now"),
    [
        ("data", "node_io_waiting_ratio", None, 0.9),  # There is no past.
        ("data", "node_io_waiting_ratio", 0.9, 0.9),
        ("sync", "node_cpu_waiting_ratio", 0.1, 0.9),  # A wait for others is no work.
        ("data", "sm_clock_hertz", 2e9, 1e9),  # That is not on the GPU.
        ("forward", "sm_clock_hertz", 2e9, 1.8e9),  # A third of it.
    ],
)
def test_what_does_not_account_for_half_is_not_told(
    stage: str, figure: str, before: float | None, now: float
) -> None:
    past = {} if before is None else {figure: before}

    assert explain_change(stage, 1.5, {figure: now}, past, {}) is None


LATE_IN_DATA = Lateness("data", PERSISTENT, 0.5, {"data": 1.0})
SLEEPS = [ThreadState("data", "sleep", 1.0)]


def test_sentence_has_both_figures_and_leaves_out_what_is_not_known() -> None:
    """On one scale, with what the figure is of. What is said is not read again as a pattern."""
    for place, where in (("", ""), ("f[{own}] (a.py:1)", " in `f[{own}] (a.py:1)`")):
        asleep = evidence({"data": 0.35}, {}, at("data", place, sleep=1.0))
        cause = why(LATE_IN_DATA, asleep, peers())
        assert cause.sentence == f"it sleeps{where} for 215 ms a step"
        assert cause.figure == "data_seconds"
        assert cause.value == pytest.approx(0.215)
        assert cause.peers_value == pytest.approx(0.04 * 0.995)
    # Nobody measured how long a step takes.
    cause = why(LATE_IN_DATA, Evidence({}, SLEEPS), {})
    assert cause.sentence == "it sleeps for 100 % of its time"
    assert (cause.figure, cause.value, cause.peers_value) == ("", None, None)
    # Of healthy peers some figures need not be known.
    cause = why(LATE_IN_DATA, Evidence({"gc_ratio": 0.4}), None)
    assert cause.sentence == "it spends 40 % of the time collecting garbage, its peers 0 %"
    # The driver's reason for a low clock may stand with the throttling.
    capped = {"gpu_throttled_ratio": "power cap"}
    assert found({"forward": 0.3}, {"sm_clock_hertz": 1e9}, facts=capped).sentence == (
        "its SM clock is 1.00 GHz, its peers' 1.96: power cap, 60 °C"
    )


@pytest.mark.parametrize(
    ("figure", "own", "peers", "written"),
    [
        ("sm_clock_hertz", 1.41e9, 1.95e9, ("1.41 GHz", "1.95")),
        ("main_run_queue_ratio", 0.344, 0.0214, ("34 %", "2.1 %")),
        ("read_bytes_per_second", 2.4e9, 3e6, ("2.4 GB/s", "0.003")),
        ("node_mount_operation_seconds", 0.05, 0.0008, ("50 ms", "0.8")),
        ("gpu_temperature_celsius", 87.4, None, ("87 °C", "")),
        ("read_bytes_per_second", 240e6, None, ("240 MB/s", "")),
        ("node_network_link_bytes_per_second", 12.5e9, None, ("12.5 GB/s", "")),
        ("major_faults_per_second", 1234.0, None, ("1,234 a second", "")),
        ("node_disk_read_seconds", 0.0004, None, ("400 µs", "")),
        ("tokens_per_step", 8192.0, None, ("8,192", "")),
        ("nvlink_links_up", 9.0, None, ("9", "")),
    ],
)
def test_figure_is_written_in_its_unit(
    figure: str, own: float, peers: float | None, written: tuple[str, str]
) -> None:
    """GHz, °C, %, MB/s; peers on the same scale, whose unit is said once, except for percent."""
    assert text(figure, own) == written[0]
    assert peers is None or pair(figure, own, peers) == written
