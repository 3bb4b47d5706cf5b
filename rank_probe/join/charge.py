"""The accounting of the join, on torch's CPU tensors.

The formulas are those of rankskew.accounting.step.charge, for many steps and ranks at a time; a
test checks that the two agree. Every tensor names its device and dtype, because a training may
have changed both defaults.
"""

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from rank_probe.guest.yielding import give_way
from rank_probe.judge.windows import BASELINE_QUANTILE
from rank_probe.wire.stages import SYNC

_set_threads: Final = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)


def use_one_cpu() -> None:
    """Make torch's operations in the calling thread, and only there, run on one CPU.

    torch.set_num_threads would change later threads too; OpenMP's setting is per thread.
    """
    torch.get_num_threads()  # First: a thread's first call copies torch's setting over OpenMP's.
    if _set_threads is not None:
        _set_threads(1)


class JoinCharges(NamedTuple):
    """Like rankskew.accounting.step.Charges, in the unit of the durations.

    *busy*, *unequal* and *normal*, the baseline of each rank's group, are [steps, ranks], *caused*
    is [steps, ranks, stages], *pacer*, *stage* and *longest* (positions in STAGES) are [steps].
    """

    busy: Tensor
    normal: Tensor
    unequal: Tensor
    caused: Tensor
    pacer: Tensor
    stage: Tensor
    longest: Tensor


def members_by_size(groups: Tensor) -> list[Tensor]:
    """Return the ranks of the peer *groups* [ranks]; groups of one size as [groups, size]."""
    _, number_of, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    by_group = torch.argsort(number_of, stable=True).split(sizes.tolist())
    by_size: dict[int, list[Tensor]] = {}
    for members in by_group:
        by_size.setdefault(len(members), []).append(members)
    return [torch.stack(same) for same in by_size.values()]


def charge(durations: Tensor, members: Sequence[Tensor]) -> JoinCharges:
    """Account for the steps in *durations* [steps, ranks, stages], of ranks in *members*.

    Integers add up exactly in any order, so durations are best in microseconds.
    """
    work = durations[:, :, :SYNC].to(torch.float64)
    busy = work.sum(dim=2)
    normal = _normal(busy, members)
    normal_work = _normal(work, members)
    heaviest = normal.amax(dim=1, keepdim=True)
    equal = torch.maximum(busy, torch.minimum(busy + (heaviest - normal), heaviest))
    give_way()
    over = work - normal_work
    had = work > 0
    give_way()
    among = over.where(had | ~had.any(dim=2, keepdim=True), -torch.inf)
    furthest = among.argmax(dim=2)  # The first of several equal ones, as for busy.
    give_way()
    positive = over.clamp(min=0)
    whole = positive.sum(dim=2, keepdim=True)
    give_way()
    nowhere = torch.zeros_like(over).scatter_(2, furthest[:, :, None], 1.0)
    parts = torch.where(whole > 0, positive / whole, nowhere)
    give_way()
    caused = torch.zeros(durations.shape, dtype=torch.float64, device="cpu")
    waits = _shared_waits(busy, equal)
    give_way()
    caused[:, :, :SYNC] = waits[:, :, None] * parts
    give_way()
    pacer = busy.argmax(dim=1)
    stage = furthest.gather(1, pacer[:, None])[:, 0]
    longest = normal_work.sum(dim=1).argmax(dim=1)
    return JoinCharges(busy, normal, equal - busy, caused, pacer, stage, longest)


def _shared_waits(busy: Tensor, equal: Tensor) -> Tensor:
    """Return what each rank is charged [steps, ranks]; see rankskew.accounting.step._shared_waits.

    Between two consecutive moments, the ranks whose *equal* has passed wait, and those whose *busy*
    is still ahead work. Simultaneous moments may be in any order: no time lies between them.
    """
    ranks = busy.shape[1]
    moments, order = torch.cat([busy, equal], dim=1).sort(dim=1)
    give_way()
    done = (order[:, :-1] < ranks).cumsum(dim=1)
    waiting = torch.arange(1, 2 * ranks, dtype=torch.int64, device="cpu") - done
    working = (ranks - done).clamp_(min=1)  # 0 once all have ended, but no time follows.
    give_way()
    charged = torch.zeros_like(moments)
    charged[:, 1:] = (moments.diff(dim=1) * waiting / working).cumsum(dim=1)
    return torch.empty_like(moments).scatter_(1, order, charged)[:, :ranks]


def _normal(values: Tensor, members: Sequence[Tensor]) -> Tensor:
    """Return each rank's baseline, that of its group, along dimension 1."""
    if len(members) == 1 and len(members[0]) == 1:
        return _baseline(values[:, None])[:, 0]
    normal = torch.zeros_like(values)
    for same in members:
        each = _baseline(values[:, same])
        normal[:, same] = each.expand(-1, -1, same.shape[1], *each.shape[3:])
    return normal


def _baseline(values: Tensor) -> Tensor:
    """Return the baseline along dimension 2, which is kept."""
    give_way()
    if values.shape[2] <= 2:
        return values.amin(dim=2, keepdim=True)
    # Many times faster along the last dimension.
    return baseline(values.movedim(2, -1).contiguous()).movedim(-1, 2)


def baseline(values: Tensor) -> Tensor:
    """Return the baseline along the last dimension, which is kept; of two values the lower."""
    if values.shape[-1] <= 2:
        return values.amin(dim=-1, keepdim=True)
    return quantile(BASELINE_QUANTILE, values)


def quantile(share: float, values: Tensor) -> Tensor:
    """Return a quantile along the last dimension, which is kept; as accounting.step.quantile."""
    give_way()
    position = share * (values.shape[-1] - 1)
    below = int(position)
    above = min(below + 1, values.shape[-1] - 1)
    low = values.kthvalue(below + 1, dim=-1, keepdim=True).values
    high = values.kthvalue(above + 1, dim=-1, keepdim=True).values
    return low + (high - low) * (position - below)
