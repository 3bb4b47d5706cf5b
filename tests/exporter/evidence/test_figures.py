"""The figures of a rank: their means over a window, in bounded memory, and where they come from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily

from exporter.evidence.growth import Growth
from exporter.evidence.peers import quantiles_of
from exporter.evidence.rank import RankReadings
from exporter.evidence.ring import DEPTH_SECONDS, MOST_FIGURES, Increment, Ring
from exporter.nvml.sample import GpuProcess
from exporter.processes.cgroup_cost import CgroupCost
from exporter.processes.host_watch import HostCost
from exporter.processes.rank_cost import NANOSECONDS, Cost
from exporter.ranks.store import HeldRank
from exporter.scrape.sampling import CollectorRun
from tests.exporter.evidence.node import FIRST_PID, FakeNode
from tests.exporter.fake_proc import process
from tests.exporter.snapshots import snapshot

RANK = ("llama", 2)


def filled(seconds: Iterable[float], figure: str = "clock") -> Ring:
    """Return a ring whose figure is, in each interval, the time at its end."""
    ring = Ring()
    last = 0.0
    for now in seconds:
        ring.add(RANK, now, [Increment(figure, now * (now - last), now - last)])
        last = now
    return ring


def means(
    *rounds: Sequence[Increment], least: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the means over samples that are five seconds apart."""
    ring = Ring(least)
    for number, each in enumerate(rounds):
        ring.add(RANK, 5.0 * number, each)
    return ring.means(RANK, 0.0)


def every(step: float, until: float) -> list[float]:
    return [step * number for number in range(round(until / step) + 1)]


def test_window_without_two_samples_has_no_figures() -> None:
    """A rank that has just come, or a GPU that is not there; a first sample has none before it.

    A driver that has stopped answering leaves no old figures behind. What came after a window of
    the past does not count, nor a figure that was not there yet.
    """
    ring = filled(every(5.0, 100.0))
    for each, since in ((Ring(), 0.0), (filled([100.0]), 0.0), (ring, 100.0), (ring, 101.0)):
        assert each.means(RANK, since) == {}
        assert each.covered_seconds(RANK, since) == 0.0

    ring.add(RANK, 105.0, [Increment("new", 1.0, 1.0)])
    assert ring.means(RANK, 40.0, until=50.0) == {"clock": pytest.approx(47.5)}
    assert ring.covered_seconds(RANK, 38.0, until=52.0) == 10.0
    assert ring.means(RANK, 41.0, until=49.0) == {}
    assert ring.covered_seconds(RANK, 41.0, until=44.0) == 0.0


@pytest.mark.parametrize("window", [290.0, 350.0, 900.0, DEPTH_SECONDS])
def test_older_windows_are_right_to_a_minute(window: float) -> None:
    """Thinning loses no amount: only the beginning of the window is a minute late at most."""
    ring = filled(every(5.0, 7_200.0))
    covered = ring.covered_seconds(RANK, 7_200.0 - window)

    assert window - 60.0 <= covered <= window
    mean = ring.means(RANK, 7_200.0 - window)["clock"]
    assert mean == pytest.approx(7_200.0 - (covered - 5.0) / 2)


GOOD = Increment("clock", 5.0, 5.0)


@pytest.mark.parametrize(
    ("samples", "figures"),
    [
        # A step counts as much as any other step; samples from before a figure as nothing.
        (
            [
                [Increment("step_seconds", 9.0, 9.0)],
                [Increment("step_seconds", 3.0, 1.0), Increment("gc_ratio", 0.5, 5.0)],
            ],
            {"step_seconds": 1.2, "gc_ratio": 0.1},
        ),
        # One NaN does not spoil a figure for as long as it is kept.
        *(
            (
                [[GOOD, Increment("clock", bad, 5.0)], [GOOD, Increment("clock", 5.0, bad)]],
                {"clock": 1},
            )
            for bad in (math.nan, math.inf, -math.inf)
        ),
        # The share of ten segments that were sent again says nothing about a network.
        ([[Increment("resent", 1.0, 499.0), Increment("idle", 0.0, 0.0)]], {}),
        ([[Increment("resent", 1.0, each)] for each in (499.0, 501.0)], {"resent": 0.002}),
    ],
)
def test_mean_weighs_what_it_is_a_mean_over(
    samples: list[list[Increment]], figures: dict[str, float]
) -> None:
    assert means([], *samples, least={"resent": 100.0}) == figures


@pytest.mark.parametrize(("step", "samples"), [(5.0, 55), (2.0, 90), (0.5, 110)])
def test_memory_is_bounded(step: float, samples: int) -> None:
    """After 10,000 samples, at whatever distance, a track has as many as it says and no more."""
    full = filled(every(step, 10_000 * step))

    assert len(full._tracks[RANK]._samples) <= samples
    assert full.covered_seconds(RANK, 0.0) > min(DEPTH_SECONDS - 60.0, 9_900 * step)
    assert full.covered_seconds(RANK, 0.0) <= DEPTH_SECONDS
    # Subjects that are gone are forgotten: a rank that has restarted is another one.
    full.keep({"node"})
    assert full.means(RANK, 0.0) == {}
    # Nor do names that grow without end, whatever made them.
    many = [Increment(f"figure {number}", 1.0, 1.0) for number in range(2 * MOST_FIGURES)]
    assert len(means([], many)) == MOST_FIGURES


def test_counter_grows_between_two_readings() -> None:
    """New, after a restart and back in sight, it counts on from where it is now.

    Of several one that begins again, is new or comes back hides none of the others.
    """
    grown = Growth()
    totals = [None, 50.0, 53.0, 53.0, 20.0, 25.0, None, 600.0, 601.0]
    found = [grown.of("reads", total) for total in totals]
    assert found == [None, None, 3.0, 0.0, None, 5.0, None, None, 1.0]

    assert grown.of_each("links", None) == {}
    assert grown.of_each("links", {"4": 1.0, "5": 9.0}) == {}
    assert grown.of_each("links", {"4": 3.0, "5": 0.0, "6": 7.0}) == {"4": 2.0}
    assert grown.of_each("other", {"4": 9.0}) == {}
    assert grown.of_each("links", {"5": 2.0}) == {"5": 2.0}
    assert grown.of_each("links", {"4": 900.0}) == {}


def test_quantiles_are_the_thirds_and_the_middle() -> None:
    """Between two values in proportion, as numpy's; of those who have the figure."""
    figures = [{"clock": each} for each in (40.0, 10.0, 30.0, 20.0)]
    found = quantiles_of([*figures, {"power": 9.0}])

    assert found["clock"] == pytest.approx((20.0, 25.0, 30.0))
    assert found["power"] == (9.0, 9.0, 9.0)


def of_steps(*reports: tuple[float, dict[str, Any]]) -> dict[str, float]:
    """Return the figures after snapshots with these changes came, each at its second."""
    readings = RankReadings()
    held = [HeldRank(snapshot(**{"stage_seconds": {}, **each}), at) for at, each in reports]
    return means(*[list(readings.read_steps(each)) for each in held])


STUCK = {"steps": 0, "stage_seconds": {"data": 1.0}}
SILENT = {"steps": 10, "gc_pause_seconds": 1.0, "tokens": 100}


@pytest.mark.parametrize(
    ("reports", "figures"),
    [
        # It is stuck, or starts; or has fallen silent, and keeps the means of the time before.
        ([(5.0 * n, STUCK) for n in range(3)], {}),
        ([(5.0, SILENT)] * 3, {}),
        # Stages that nobody measured are not known.
        ([(0.0, {"steps": 10}), (1.0, {"steps": 20})], {}),
        # Who does not count samples has no figure of them.
        (
            [(0.0, {"steps": 10, "tokens": 800}), (5.0, {"steps": 14, "tokens": 1_200})],
            {"tokens_per_step": 100.0},
        ),
        # Of the time between the snapshots, not between the looks at them.
        (
            [(100.0, {"gc_pause_seconds": 3.0}), (104.0, {"gc_pause_seconds": 4.0})],
            {"gc_ratio": 0.25},
        ),
    ],
)
def test_figures_are_of_what_the_rank_has_told_since(
    reports: list[tuple[float, dict[str, Any]]], figures: dict[str, float]
) -> None:
    assert of_steps(*reports) == figures


def test_stages_are_means_of_a_step() -> None:
    """A stage that a rank lacks takes no time; one that occurs for the first time began at zero.

    The step has the wait for others, which is no stage of its own.
    """
    found = of_steps(
        (5.0, {"steps": 10, "stage_seconds": {"data": 1.0, "sync": 2.0}}),
        (10.0, {"steps": 20, "stage_seconds": {"data": 3.0, "sync": 6.0, "checkpoint": 4.0}}),
    )

    known = {"data_seconds": 0.2, "checkpoint_seconds": 0.4, "step_seconds": 1.0}
    assert {name: found[name] for name in known} == pytest.approx(known)
    assert found["eval_seconds"] == found["forward_seconds"] == 0.0
    assert "sync_seconds" not in found


def test_process_that_hides_its_readings_has_no_figures() -> None:
    """No permission, an old kernel, a cgroup without a quota: each is absent, and is not 0."""
    readings, nothing = RankReadings(), HostCost(Cost(), CgroupCost())
    rounds = [list(readings.read_host(nothing, 5.0 * n, None)) for n in range(1, 4)]
    assert means(*rounds) == {"major_faults_per_second": 0.0}

    # Counters that fall have not grown; a look that is read again says nothing new.
    used = [HostCost(Cost(running_nanoseconds=n * NANOSECONDS), CgroupCost()) for n in (9, 1, 4)]
    rounds = [list(readings.read_host(each, 20.0 + 5.0 * n)) for n, each in enumerate(used)]
    assert means(*rounds)["main_running_ratio"] == pytest.approx(0.6)
    assert list(readings.read_host(used[-1], 30.0)) == []


def test_what_cannot_be_read_hides_nothing_else() -> None:
    """No GPU, a driver or a /proc that hangs, or a process in another container.

    Whoever hangs says so elsewhere; steps and all else go on.
    """
    known = {
        **{"data_seconds": 0.05, "step_seconds": 0.5},
        **{"main_running_ratio": 0.5, "main_run_queue_ratio": 0.2},
        # Workers that want a CPU wait for it in a share of that time.
        **{"workers_run_queue_ratio": 0.25, "saturated_workers": 3.0},
        **{"read_bytes_per_second": 1e6, "major_faults_per_second": 2.0, "io_waiting_ratio": 0.1},
        "cpu_quota_throttled_ratio": 0.2,
    }
    node = FakeNode(ranks=2)
    node.run(40)
    found = node.figures(1)
    assert {name: found[name] for name in known} == pytest.approx(known)
    assert not [name for name in found if name.startswith(("gpu", "sm_clock", "node_"))]

    node = FakeNode(ranks=2, gpus=2)
    node.host.hidden = {1}
    node.processes.clear()
    node.run(40)
    assert "main_running_ratio" not in node.figures(1)
    assert {"step_seconds", "sm_clock_hertz"} <= node.figures(1).keys()
    assert "main_running_ratio" in node.figures(0)
    assert [node.sampler.pid(node.held(rank)) for rank in (0, 1)] == [FIRST_PID, None]

    node.host.hangs = node.processes_hang = True
    node.run(40)
    assert {"step_seconds", "sm_clock_hertz"} <= node.figures(0).keys()
    assert "main_running_ratio" not in node.figures(0)
    assert node.sampler.facts(node.held(0), 0.0) == {}


def test_rank_has_the_figures_of_its_own_gpu_since_it_is_late() -> None:
    """And not of another one; what was before the onset does not count."""
    node = FakeNode(ranks=2, gpus=2)
    node.run(40)
    node.gpus[1] = replace(node.gpus[1], sm_clock_megahertz=1_400)
    node.run(30)

    assert node.figures(0, 20.0)["sm_clock_hertz"] == pytest.approx(1.9e9)
    assert node.figures(1, 20.0)["sm_clock_hertz"] == pytest.approx(1.4e9)
    assert 1.4e9 < node.figures(1, 60.0)["sm_clock_hertz"] < 1.9e9
    assert node.sampler.covered_seconds(node.held(0), node.clock() - 20.0) == pytest.approx(20, 0.3)
    # The clock of half of the time counts for half, whatever hour the node thinks it is.
    node.wall_seconds += 3_600.0
    node.gpus[1] = replace(node.gpus[1], sm_clock_megahertz=1_800)
    node.run(10)
    assert node.figures(1, 20.0)["sm_clock_hertz"] == pytest.approx(1.6e9, rel=0.05)
    # A rank that restarts has its own figures only, not those of its former process.
    node.restart(1)
    node.run(1)
    assert not {"step_seconds", "main_running_ratio"} & node.figures(1, 600.0).keys()
    assert node.figures(0, 600.0)["step_seconds"] == pytest.approx(0.5)
    assert node.sampler.covered_seconds(node.held(1), 0.0) < 5.0


def test_foreign_process_is_counted_and_named() -> None:
    """By its name and the id of its user, never by what it makes of a terminal."""
    node = FakeNode(ranks=2, gpus=2)
    node.processes[7] = process(7, name="py\x1b[1m", uid=1001)
    listed = (*(node.gpus[1].processes or ()), GpuProcess(7, 10**9))
    node.gpus[1] = replace(node.gpus[1], processes=listed)
    node.run(40)

    assert [node.figures(rank)["gpu_foreign_processes"] for rank in (0, 1)] == [0.0, 1.0]
    assert node.sampler.facts(node.held(0), 0.0) == {}
    assert node.sampler.facts(node.held(1), 0.0) == {
        "gpu_foreign_processes": "py?[1m, PID 7 of user 1001"
    }
    node.gpus[1] = replace(node.gpus[1], processes=listed[:1])
    node.run(5)
    assert node.sampler.facts(node.held(1), 0.0) == {}


def test_ranks_that_share_a_gpu_are_foreign_to_one_another() -> None:
    """Two ranks that chose the same GPU slow each other down."""
    node = FakeNode(ranks=2, gpus=1)
    node.ranks[1] = replace(node.ranks[1], rank_info={"gpu_uuid": "GPU-0"})
    listed = tuple(GpuProcess(FIRST_PID + rank, 10**9) for rank in (0, 1))
    node.gpus[0] = replace(node.gpus[0], processes=listed)
    node.run(40)

    assert node.figures(0)["gpu_foreign_processes"] == 1.0
    assert node.sampler.facts(node.held(0), 0.0) == {"gpu_foreign_processes": "rank 1 of job llama"}


def test_rank_has_the_figures_of_its_node_and_of_where_its_process_may_run() -> None:
    """What a collector shows counts for all ranks; CPUs of the other socket for the rank alone."""
    node = FakeNode(ranks=2, gpus=1)
    node.gpus[0] = replace(node.gpus[0], numa_node=0, cpu_affinity=(1, 2, 3))
    for _ in range(3):
        family = CounterMetricFamily("rankskew_node_cpu_throttled_seconds", "As it is.")
        family.add_metric([], node.clock() / 10)
        node.shown["node_cpu"] = CollectorRun((family,), True, node.clock())
        node.run(10)

    for rank in (0, 1):
        assert node.figures(rank)["node_cpu_throttled_ratio"] == pytest.approx(0.1)
    assert node.figures(0)["cpus_near_gpu_ratio"] == 0.5
    assert "cpus_near_gpu_ratio" not in node.figures(1)
