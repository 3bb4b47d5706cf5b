"""A kind of collective, and what kinds are made of: the two ranks, and a small network."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

Call = Callable[[], object]


class Kind(NamedTuple):
    """*make* returns the call that is made twice, the second time with rank *late* behind."""

    make: Callable[[], Call]
    late: int = 1


def me() -> int:
    return dist.get_rank()


def at(rank: int, here: Call, elsewhere: Call) -> object:
    """Call *here* on *rank*, *elsewhere* on the other."""
    return here() if me() == rank else elsewhere()


def net(normalize: bool = False) -> nn.Module:
    """Return a small network, with buffers if it shall *normalize*."""
    middle = nn.BatchNorm1d(4) if normalize else nn.ReLU()
    return nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 1))


def step_of(model: nn.Module) -> Call:
    """Return a whole forward and backward of *model*."""
    return lambda: model(torch.ones(8, 4)).sum().backward()
