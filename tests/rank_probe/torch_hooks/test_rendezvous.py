"""Tests of the patch on init_process_group."""

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import device_mesh, distributed_c10d

from rank_probe.guest.patches import Patches
from rank_probe.process.lifecycle import Lifecycle
from rank_probe.torch_hooks import process_group, rendezvous

ORIGINAL = dist.init_process_group


class Groups:
    """Keeps what it is told, with whether there was a group then; raises each time."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []

    def while_ranks_meet(self) -> None:
        self._tell("meet")

    def formed(self) -> None:
        self._tell("formed")

    def gone(self) -> None:
        self._tell("gone")

    def _tell(self, what: str) -> None:
        self.told.append((what, dist.is_initialized()))
        raise ValueError


@pytest.fixture
def life() -> Iterator[Lifecycle]:
    """A lifecycle that is told, until the test is over."""
    life = Lifecycle()
    patches = rendezvous.attach(life, Groups())
    yield life
    patches.undo()


def test_making_the_group_is_the_rendezvous() -> None:
    """Under either name the call is timed; what is done meanwhile begins first and never raises."""
    life, groups = Lifecycle(), Groups()
    patches = rendezvous.attach(life, groups)
    distributed_c10d.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    patches.undo()
    dist.destroy_process_group()

    assert groups.told == [("meet", False), ("formed", True)]
    assert {"init", "rendezvous"} <= set(life.seconds())


def test_groups_of_a_script_that_knows_the_function_are_seen() -> None:
    """It may have imported it by name earlier; each group is told once, and so is its end."""
    groups = Groups()
    patches = rendezvous.attach(Lifecycle(), groups)
    for _ in range(2):
        ORIGINAL("gloo", store=HashStore(), rank=0, world_size=1)
        dist.new_group([0])
        dist.destroy_process_group()
    patches.undo()

    assert groups.told == 2 * [("formed", True), ("gone", False)]


def test_group_is_seen_whatever_torch_passes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that all groups pass through is private: its arguments may change."""

    def newer(*, group: Any, reason: str) -> str:
        distributed_c10d._world.default_pg = group
        return reason

    monkeypatch.setattr(distributed_c10d._world, "default_pg", None)
    monkeypatch.setattr(distributed_c10d, "_update_default_pg", newer)
    groups, calls = Groups(), []
    patches, waiting = rendezvous.attach(Lifecycle(), groups), Patches()
    process_group.before_created(torch, waiting, lambda: calls.append(dist.is_initialized()))
    update: Any = distributed_c10d._update_default_pg
    told = [update(group=group, reason="test") for group in (object(), None)]
    waiting.undo()
    patches.undo()

    assert told == ["test", "test"]
    assert groups.told == [("formed", True), ("gone", False)]
    assert calls == [True]


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
    rendezvous.attach(Lifecycle(), Groups()).undo()

    for module in (dist, distributed_c10d, device_mesh):
        assert getattr(module, "init_process_group", ORIGINAL) is ORIGINAL
