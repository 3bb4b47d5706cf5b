"""The kinds of faults, how far each reaches, and how they are asked for."""

import pytest

from exporter.collectors.catalog import COLLECTORS
from exporter.errors import UsageError
from fleet_simulator.faults import BY_NAME, KINDS, PlantedFault, Scope, parse
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


def test_fault_is_placed_where_it_was_asked_for() -> None:
    """The kind comes first; node, GPU and onset follow in any order."""
    assert parse("thermal:gpu=3,node=7,after=2m") == PlantedFault(BY_NAME["thermal"], 7, 3, 120.0)


def test_fault_has_begun_unless_it_is_to_begin_later() -> None:
    """Without an onset, a fault is there from the start, on the first GPU."""
    assert parse("loader") == PlantedFault(
        BY_NAME["loader"], 0, 0, BY_NAME["loader"].begins_seconds
    )
    assert parse("loader").begins_seconds < 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("melted:node=1", "there is no fault 'melted'; choose one of loader, "),
        ("loader:node=x", "expected KIND:node=I,gpu=J,after=30s, not 'node=x'"),
        ("loader:rank=3", "expected KIND:node=I,gpu=J,after=30s, not 'rank=3'"),
        ("loader:after=soon", "loader:after=soon: 'soon' is not a duration"),
    ],
)
def test_what_is_no_fault_is_refused_in_one_sentence(text: str, complaint: str) -> None:
    """The answer names what was wrong, and what can be written instead."""
    with pytest.raises(UsageError) as refused:
        parse(text)

    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
