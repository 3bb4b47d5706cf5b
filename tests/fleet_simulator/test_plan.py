"""Which jobs run where, and with which faults."""

import pytest

from exporter.collectors.catalog import COLLECTORS
from exporter.errors import UsageError
from fleet_simulator.faults import BY_NAME, KINDS, PlantedFault, Scope, parse
from fleet_simulator.plan import equal_jobs, tour
from rank_probe.wire.stages import STAGES


def test_tour_has_a_job_for_each_fault_and_a_healthy_one() -> None:
    """No two jobs of the tour share a node, and each fault is on the job of its name.

    A kind begins at the same time, however it was asked for.
    """
    healthy, *faulty = plans = tour()
    nodes = [n for plan in plans for n in range(plan.first_node, plan.first_node + plan.nodes)]

    assert [plan.job_id for plan in plans] == ["healthy", *(kind.name for kind in KINDS)]
    assert nodes == list(range(len(nodes)))
    assert not healthy.faults
    for plan in faulty:
        assert plan.faults[0].kind.name == plan.job_id
        assert plan.faults[0].begins_seconds == parse(plan.job_id).begins_seconds
        assert all(0 <= fault.node - plan.first_node < plan.nodes for fault in plan.faults)
        assert all(fault.gpu < plan.gpus for fault in plan.faults)
    assert {fault.gpu for plan in tour(1) for fault in plan.faults} == {0}


def test_equal_jobs_share_the_nodes_and_get_the_faults_of_theirs() -> None:
    """A fault on node 5 of eight is the second job's, where two jobs have four nodes each."""
    first, second = equal_jobs(8, 4, 2, [parse("thermal:node=5,gpu=3")])

    assert (first.job_id, second.job_id) == ("sim-0", "sim-1")
    assert (first.ranks, second.first_node) == (16, 4)
    assert not first.faults
    assert [second.place(rank) for rank, at in ((7, 5), (0, 4))] == [(5, 3), (4, 0)]
    assert second.faults[0].has(*second.place(7))


@pytest.mark.parametrize(
    ("jobs", "fault", "complaint"),
    [
        (3, "loader", "2 nodes cannot be divided among 3 jobs: choose a divisor"),
        (1, "pcie:node=2", "pcie: there is no GPU 0 on node 2; nodes are 0 to 1"),
        (1, "pcie:gpu=4", "pcie: there is no GPU 4 on node 0; nodes are 0 to 1"),
        (1, "melted:node=1", "there is no fault 'melted'; choose one of loader, "),
        (1, "loader:node=x", "expected KIND:node=I,gpu=J,after=30s, not 'node=x'"),
        (1, "loader:rank=3", "expected KIND:node=I,gpu=J,after=30s, not 'rank=3'"),
        (1, "loader:after=soon", "loader:after=soon: 'soon' is not a duration"),
    ],
)
def test_impossible_fleet_is_refused_in_one_sentence(jobs: int, fault: str, complaint: str) -> None:
    """The answer names what was wrong: a fault that is not there would have no effect."""
    with pytest.raises(UsageError) as refused:
        equal_jobs(2, 4, jobs, [parse(fault)])

    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_fault_affects_its_gpu_its_node_or_its_job() -> None:
    places = [(1, 2), (1, 0), (0, 2)]
    affected = {
        scope: [PlantedFault(kind, 1, 2).has(*place) for place in places]
        for scope in Scope
        for kind in KINDS
        if kind.scope is scope
    }

    assert affected == {
        Scope.GPU: [True, False, False],
        Scope.NODE: [True, True, False],
        Scope.JOB: [True, True, True],
    }


def test_kinds_are_told_apart() -> None:
    """Names are unique, words are given, and time is only added to stages that exist."""
    assert len(BY_NAME) == len(KINDS)
    assert all(kind.about for kind in KINDS)
    assert {stage for kind in KINDS for stage in kind.extra} <= set(STAGES)
    assert not BY_NAME.keys() & {entry.name for entry in COLLECTORS}


@pytest.mark.parametrize(
    ("text", "place"),
    [("thermal:gpu=3,node=7,after=2m", (7, 3, 120.0)), ("thermal", (0, 0, -300.0))],
)
def test_fault_is_placed_where_it_was_asked_for(text: str, place: tuple[int, int, float]) -> None:
    """Node, GPU and onset in any order; else it is there from the start, on the first GPU."""
    assert parse(text) == PlantedFault(BY_NAME["thermal"], *place)
