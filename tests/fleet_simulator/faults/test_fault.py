"""The kinds of faults, and how far each reaches."""

from exporter.collectors.catalog import COLLECTORS
from fleet_simulator.faults.fault import PlantedFault, Scope
from fleet_simulator.faults.kinds import BY_NAME, KINDS
from rank_probe.wire.stages import STAGES


def test_fault_affects_its_gpu_its_node_or_its_job() -> None:
    on_gpu, on_node, on_job = (
        PlantedFault(next(kind for kind in KINDS if kind.scope is scope), 1, 2) for scope in Scope
    )
    places = [(1, 2), (1, 0), (0, 2)]

    assert [on_gpu.has(*place) for place in places] == [True, False, False]
    assert [on_node.has(*place) for place in places] == [True, True, False]
    assert [on_job.has(*place) for place in places] == [True, True, True]


def test_kinds_are_told_apart() -> None:
    """Names are unique, words are given, and time is only added to stages that exist."""
    assert len(BY_NAME) == len(KINDS)
    assert all(kind.about for kind in KINDS)
    assert {stage for kind in KINDS for stage in kind.extra} <= set(STAGES)
    assert not BY_NAME.keys() & {entry.name for entry in COLLECTORS}
