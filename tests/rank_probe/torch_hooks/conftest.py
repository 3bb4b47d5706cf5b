"""Timelines that torch's hooks feed in one process, and whose boundaries a test can inspect."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, collectives, parallel, training_loop


@contextmanager
def attached(automatic: Timeline) -> Iterator[Timeline]:
    """Have every patch in torch while the block runs."""
    modules = (backward, collectives, parallel, training_loop)
    patches = [module.attach(automatic) for module in modules]
    try:
        yield automatic
    finally:
        while patches:
            patches.pop().undo()


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """An automatic timeline with every patch in torch."""
    with attached(Timeline(automatic=True)) as timeline:
        yield timeline


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    # This cache keeps groups. A fork in another thread would end them and wait for missing threads.
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", bool)()  # Not in torch 2.4.


def recorded(*, automatic: bool) -> Timeline:
    """Return a timeline for `marks`."""
    timeline = Timeline(automatic=automatic)
    timeline.also_tell(list[int]().append)
    return timeline


def marks(timeline: Timeline) -> list[int]:
    """Return the boundaries of a recorded timeline so far: stages with their marks."""
    append: Any = timeline._device_boundary
    found: list[int] = append.__self__
    return found
