"""Tests of where a rank sits and who its peers are."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from rank_probe.guest.guard import failures
from rank_probe.torch_hooks.mesh import Coordinates, coordinates_in

RANK, WORLD = 5, 8


@pytest.fixture
def coordinates() -> Iterator[Coordinates]:
    """An observer in rank 5 of 8, whose other ranks do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=WORLD)
    coordinates = Coordinates()
    patches = coordinates.attach()
    yield coordinates
    patches.undo()
    dist.destroy_process_group()


def mesh(*sizes: int, names: tuple[str, ...] | None) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(WORLD).view(*sizes), mesh_dim_names=names)


def test_named_mesh_tells_every_coordinate(coordinates: Coordinates) -> None:
    """Rank 5 of a pp x dp x tp mesh of 2 x 2 x 2 is in place 1, 0, 1; its slices change nothing."""
    whole = mesh(2, 2, 2, names=("pp", "dp", "tp"))
    _ = whole["dp"]

    assert coordinates.found == {"pp": "1", "dp": "0", "tp": "1"}


def test_mesh_that_says_nothing_of_this_rank_is_no_failure(coordinates: Coordinates) -> None:
    """Nobody knows what an unnamed dimension is for, nor where a rank is that is not in it."""
    before = failures.count
    mesh(8, names=None)
    DeviceMesh("cpu", [0, 1], mesh_dim_names=("tp",))

    assert coordinates.found == {}
    assert failures.count == before


def test_pipeline_stage_without_a_mesh_tells_the_stage(coordinates: Coordinates) -> None:
    """The rank's place in the pipeline's group is its pp coordinate."""
    from torch.distributed.pipelining import PipelineStage

    example = torch.ones(1, 2)  # torch 2.4 does not find its shape out by itself.
    PipelineStage(nn.Linear(2, 2), RANK, WORLD, torch.device("cpu"), input_args=example)

    assert coordinates.found == {"pp": "5"}


def test_strange_mesh_is_the_users_business(
    coordinates: Coordinates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a mesh answers, making it does not fail because of us."""
    before = failures.count
    monkeypatch.setattr(DeviceMesh, "get_coordinate", lambda _: 1 / 0)
    mesh(8, names=("dp",))

    assert failures.count == before + 1
    assert coordinates.found == {}


def test_detached_observer_sees_nothing() -> None:
    """`undo` puts back what a mesh is made by."""
    before: Any = DeviceMesh.__init__
    Coordinates().attach().undo()

    assert DeviceMesh.__init__ is before


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ([("dp_replicate", 1, 2), ("dp_shard", 3, 4)], {"dp": "7"}),
        ([("FSDP", 2, 4), ("Tensor", 1, 2)], {"dp": "2", "tp": "1"}),
        ([("pipeline", 0, 2), ("model", 1, 2)], {"pp": "0", "tp": "1"}),
        ([("cp", 1, 2), ("ep", 1, 2)], {}),
    ],
)
def test_dimensions_go_by_many_names(
    dimensions: list[tuple[str, int, int]], expected: dict[str, str]
) -> None:
    """Each library's name is known, in any case; two data parallel dimensions are one."""
    assert coordinates_in(dimensions) == expected
