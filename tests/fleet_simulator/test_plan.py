"""Which jobs run where."""

import pytest

from exporter.errors import UsageError
from fleet_simulator.faults import KINDS, parse
from fleet_simulator.plan import equal_jobs, tour


def test_tour_has_a_job_for_each_fault_and_a_healthy_one() -> None:
    """No two jobs of the tour share a node, and each fault is on the job of its name."""
    plans = tour()
    nodes = [n for plan in plans for n in range(plan.first_node, plan.first_node + plan.nodes)]

    assert [plan.job_id for plan in plans] == ["healthy", *(kind.name for kind in KINDS)]
    assert nodes == list(range(len(nodes)))
    assert not plans[0].faults
    for plan in plans[1:]:
        assert plan.faults[0].kind.name == plan.job_id
        assert all(0 <= fault.node - plan.first_node < plan.nodes for fault in plan.faults)
        assert all(fault.gpu < plan.gpus for fault in plan.faults)


def test_equal_jobs_share_the_nodes_and_get_the_faults_of_theirs() -> None:
    """A fault on node 5 of eight is the second job's, where two jobs have four nodes each."""
    first, second = equal_jobs(8, 4, 2, [parse("thermal:node=5,gpu=3")])

    assert (first.job_id, second.job_id) == ("sim-0", "sim-1")
    assert (first.ranks, second.first_node) == (16, 4)
    assert not first.faults
    assert [second.place(rank) for rank, at in ((7, 5), (0, 4))] == [(5, 3), (4, 0)]
    assert second.faults[0].has(*second.place(7))


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ((8, 4, 3, []), "8 nodes cannot be divided among 3 jobs: choose a divisor"),
        ((2, 4, 1, ["pcie:node=2"]), "pcie: there is no GPU 0 on node 2; nodes are 0 to 1"),
        ((2, 4, 1, ["pcie:gpu=4"]), "pcie: there is no GPU 4 on node 0; nodes are 0 to 1"),
    ],
)
def test_impossible_fleet_is_refused_in_one_sentence(
    asked: tuple[int, int, int, list[str]], complaint: str
) -> None:
    """A fault in a place that is not there would otherwise have no effect."""
    nodes, gpus, jobs, faults = asked
    with pytest.raises(UsageError, match=complaint):
        equal_jobs(nodes, gpus, jobs, [parse(fault) for fault in faults])
