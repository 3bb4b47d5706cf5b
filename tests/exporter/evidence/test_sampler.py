"""What the exporter knows of ranks, GPUs and the node becomes figures of each rank."""

from dataclasses import replace

import pytest
from prometheus_client.core import CounterMetricFamily

from exporter.nvml.sample import GpuProcess
from exporter.scrape.sampling import CollectorRun
from tests.exporter.evidence.node import FIRST_PID, FakeNode
from tests.exporter.fake_proc import process, torchrun


def test_node_without_ranks_has_nothing_to_say() -> None:
    """GPUs alone are sampled, and nobody asks for them."""
    FakeNode(gpus=2).run(20)
    FakeNode().run(20)


def test_rank_without_a_gpu_has_the_figures_of_its_steps_and_its_host() -> None:
    """Training on CPUs, or a driver that does not answer, hides nothing else."""
    node = FakeNode(ranks=2)
    node.run(40)

    known = {"main_running_ratio": 0.5, "data_seconds": 0.05, "step_seconds": 0.5}
    found = node.figures(1)

    assert {name: found[name] for name in known} == pytest.approx(known)
    assert not [name for name in found if name.startswith(("gpu", "sm_clock", "node_"))]


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


def test_wall_clock_that_is_set_changes_no_figure_of_a_gpu() -> None:
    """The clock of half of the time counts for half, whatever hour the node thinks it is."""
    node = FakeNode(ranks=1, gpus=1)
    node.run(10)
    node.wall_seconds += 3_600.0
    node.gpus[0] = replace(node.gpus[0], sm_clock_megahertz=1_500)
    node.run(10)

    assert node.figures(0)["sm_clock_hertz"] == pytest.approx(1.7e9, rel=0.05)


def test_driver_that_stops_answering_leaves_no_old_figures() -> None:
    """A clock of an hour ago explains nothing; the rest is still known."""
    node = FakeNode(ranks=1, gpus=1)
    node.run(40)
    node.gpus = []
    node.nvml.sample = None
    node.run(40)

    assert "sm_clock_hertz" not in node.figures(0)
    assert node.figures(0)["step_seconds"] == pytest.approx(0.5)


def test_rank_that_restarts_has_its_own_figures_only() -> None:
    """Those of its former process are not its peers' either: it begins again."""
    node = FakeNode(ranks=2, gpus=2)
    node.run(40)
    node.restart(1)
    node.run(1)
    young = node.figures(1, 600.0)

    assert "step_seconds" not in young
    assert "main_running_ratio" not in young
    assert young["sm_clock_hertz"] == pytest.approx(1.9e9)
    assert node.figures(0, 600.0)["step_seconds"] == pytest.approx(0.5)
    assert node.sampler.covered_seconds(node.held(1), 0.0) < 5.0


def test_rank_whose_process_cannot_be_read_has_the_rest() -> None:
    """Its processes are another container's; its steps and its GPU are known."""
    node = FakeNode(ranks=2, gpus=2)
    node.host.hidden = {1}
    node.processes.clear()
    node.run(40)

    assert "main_running_ratio" not in node.figures(1)
    assert {"step_seconds", "sm_clock_hertz"} <= node.figures(1).keys()
    assert "main_running_ratio" in node.figures(0)
    assert node.sampler.pid(node.held(1)) is None
    assert node.sampler.pid(node.held(0)) == FIRST_PID


def test_file_system_that_hangs_takes_nothing_else_along() -> None:
    """Whoever hangs in /proc says so elsewhere; steps and GPUs go on."""
    node = FakeNode(ranks=1, gpus=1)
    node.host.hangs = node.processes_hang = True
    node.run(40)

    assert {"step_seconds", "sm_clock_hertz"} <= node.figures(0).keys()
    assert "main_running_ratio" not in node.figures(0)
    assert node.sampler.facts(node.held(0), 0.0) == {}


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
    node.processes[FIRST_PID + 1] = process(FIRST_PID + 1, torchrun(1))
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


def test_only_figures_that_have_a_name_are_told() -> None:
    """Single reasons to throttle are for texts."""
    node = FakeNode(ranks=1, gpus=1)
    for _ in range(4):
        seconds = {"sw_thermal_slowdown": node.clock() / 2}
        node.gpus[0] = replace(node.gpus[0], throttle_seconds=seconds)
        node.run(5)

    assert "gpu_throttled_ratio" in node.figures(0)
    assert not [name for name in node.figures(0) if ":" in name]
    assert node.sampler.facts(node.held(0), 0.0) == {"gpu_throttled_ratio": "too hot"}
