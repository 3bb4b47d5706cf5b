"""Tests of the patch on init_process_group."""

import pickle
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import device_mesh, distributed_c10d

from rank_probe.process.lifecycle import Lifecycle
from rank_probe.torch_hooks import rendezvous

ORIGINAL = dist.init_process_group


@pytest.fixture
def life() -> Iterator[Lifecycle]:
    """A lifecycle that is told, until the test is over."""
    life = Lifecycle()
    patches = rendezvous.attach(life, lambda: None)
    yield life
    patches.undo()


def test_making_the_group_is_the_rendezvous() -> None:
    """Under either name the call is timed; what is done meanwhile begins first and never raises."""
    was_there: list[bool] = []

    def meanwhile() -> None:
        was_there.append(dist.is_initialized())
        raise ValueError

    life = Lifecycle()
    patches = rendezvous.attach(life, meanwhile)
    distributed_c10d.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    patches.undo()
    dist.destroy_process_group()

    assert was_there == [False]
    assert {"init", "rendezvous"} <= set(life.seconds())


def test_a_group_that_cannot_be_made_is_none(life: Lifecycle) -> None:
    """The user's error passes, and no rendezvous is reported."""
    with pytest.raises(RuntimeError, match="nonsense"):
        dist.init_process_group(init_method="nonsense://", rank=0, world_size=1)

    assert "rendezvous" not in life.seconds()


def test_it_still_pickles_by_name(life: Lifecycle) -> None:
    """All its names hold the same function."""
    assert pickle.loads(pickle.dumps(dist.init_process_group)) is dist.init_process_group
    assert dist.init_process_group is not ORIGINAL


def test_undo_restores_every_name() -> None:
    """Each module has torch's own function again."""
    rendezvous.attach(Lifecycle(), lambda: None).undo()

    for module in (dist, distributed_c10d, device_mesh):
        assert getattr(module, "init_process_group", ORIGINAL) is ORIGINAL
