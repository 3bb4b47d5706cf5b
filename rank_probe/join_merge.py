"""The arithmetic of the join, on torch's CPU tensors: align the ranks' steps, charge, add up.

The formulas are those of exporter.skew.charge, for many steps and ranks at a time; a test holds
the two together. Every tensor names its device and type, because both have defaults that a
training may have changed.
"""

import ctypes
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from rank_probe.join_result import (
    CAUSED,
    COLUMNS,
    GROUP_WAIT,
    GROUPS,
    JOINED,
    LAST_STEP,
    PACED,
    RESULT_BYTES,
    STEPS,
    STRIDE,
)
from rank_probe.join_ring import HEAD, MAGIC, ROW
from rank_probe.stages import STAGES, SYNC

# A third of the way up the peers; it stays with the healthy while up to two thirds are late.
BASELINE_QUANTILE: Final = 1 / 3
# Elements worked on at a time: small enough for one thread, and for few MiB.
CHUNK: Final = 32_768

_WORDS_IN_HEAD: Final = HEAD.size // 4
_WORDS_IN_ROW: Final = ROW.size // 4
_US: Final = 1e6


def use_one_cpu() -> None:
    """Have torch's operations in the calling thread, and in no other, run on one CPU.

    torch.set_num_threads would change it for later threads too; OpenMP's setting is a thread's own.
    """
    torch.get_num_threads()  # The first call in a thread sets it from torch's, so not later.
    set_it = getattr(ctypes.CDLL(None), "omp_set_num_threads", None)
    if set_it is not None:
        set_it(1)


class Alignment:
    """The steps in *candidates* that every rank's message holds, message by message."""

    def __init__(self, candidates: Sequence[int], world_size: int) -> None:
        self._world_size = world_size
        self._candidates = torch.tensor(sorted(candidates), dtype=torch.int32, device="cpu")
        self._found = torch.ones(len(candidates), dtype=torch.bool, device="cpu")
        shape = (world_size, len(candidates), len(STAGES))
        self._microseconds = torch.zeros(shape, dtype=torch.int32, device="cpu")
        self._groups = torch.zeros(world_size, dtype=torch.int64, device="cpu")

    def add(self, first_rank: int, messages: Sequence[bytes]) -> bool:
        """Take the messages of *first_rank* and those after it.

        Returns False where no step can be common any more: a message has no steps, or is no
        message of this version and world.
        """
        by_length: dict[int, list[int]] = {}
        for position, message in enumerate(messages):
            by_length.setdefault(len(message), []).append(position)
        return all(
            self._add_same(first_rank, positions, [messages[each] for each in positions], length)
            for length, positions in by_length.items()
        )

    def _add_same(
        self, first_rank: int, positions: list[int], messages: list[bytes], length: int
    ) -> bool:
        rows, rest = divmod(length - HEAD.size, ROW.size)
        if rows <= 0 or rest:
            return False
        # A copy that may be written to, or torch warns.
        words = torch.frombuffer(bytearray().join(messages), dtype=torch.int32)
        words = words.view(len(messages), length // 4)
        expected = torch.tensor([MAGIC, self._world_size], dtype=torch.int32, device="cpu")
        if not torch.equal(words[:, :2], expected.expand(len(messages), 2)):
            return False
        ranks = torch.tensor(positions, dtype=torch.int64, device="cpu") + first_rank
        digests = words[:, 2:_WORDS_IN_HEAD].contiguous().view(torch.int64)
        self._groups[ranks] = digests[:, 0]
        cells = words[:, _WORDS_IN_HEAD:].view(len(messages), rows, _WORDS_IN_ROW)
        steps = cells[:, :, 0].contiguous()
        wanted = self._candidates.expand(len(messages), -1).contiguous()
        at = torch.searchsorted(steps, wanted).clamp_(max=rows - 1)
        self._found &= (steps.gather(1, at) == wanted).all(dim=0)
        vectors = cells[:, :, 1:]
        self._microseconds[ranks] = torch.take_along_dim(vectors, at[:, :, None], dim=1)
        return bool(self._found.any())

    def common(self) -> tuple[list[int], Tensor, Tensor]:
        """Return the steps that all ranks hold, their microseconds and each rank's group.

        Shapes: [steps, ranks, stages] as int32, [ranks] as int64 (a digest).
        """
        steps: list[int] = self._candidates[self._found].tolist()
        return steps, self._microseconds[:, self._found].transpose(0, 1), self._groups


class Totals:
    """What the ranks have caused since the join began, and which steps are in it."""

    def __init__(self, world_size: int) -> None:
        self._totals = torch.zeros(world_size, COLUMNS, dtype=torch.float64, device="cpu")
        self._merged: set[int] = set()

    def unmerged(self, steps: Sequence[int]) -> list[int]:
        """Return those of *steps*, all on offer, that were not added yet; forget the others."""
        self._merged.intersection_update(steps)
        return [step for step in steps if step not in self._merged]

    def add(self, steps: Sequence[int], microseconds: Tensor, groups: Tensor) -> None:
        """Add *steps*, as `Alignment.common` returns them; at least one."""
        members = members_by_size(groups)
        _, ranks, stages = microseconds.shape
        for part in microseconds.split(max(1, CHUNK // (ranks * stages))):
            charges = charge(part, members)
            self._totals[:, JOINED] += part.sum(dim=(0, 2), dtype=torch.float64) / _US
            self._totals[:, GROUP_WAIT] += charges.unequal.sum(dim=0) / _US
            self._totals[:, CAUSED:] += charges.caused.sum(dim=0) / _US
            cells = charges.pacer * len(STAGES) + charges.stage
            counted = torch.bincount(cells, minlength=ranks * stages).view(ranks, stages)
            self._totals[:, PACED:CAUSED] += counted
        self._merged.update(steps)
        self._totals[:, STEPS] += len(steps)
        self._totals[:, LAST_STEP].clamp_(min=max(steps))
        self._totals[:, GROUPS] = sum(each.shape[0] for each in members)

    def messages(self, stride: int) -> list[bytes]:
        """Return what each rank is told, for `read_result`; *stride* is that of rank 0's ring."""
        self._totals[:, STRIDE] = stride
        whole = bytearray(RESULT_BYTES * len(self._totals))
        torch.frombuffer(whole, dtype=torch.float64).copy_(self._totals.view(-1))
        return [bytes(whole[at : at + RESULT_BYTES]) for at in range(0, len(whole), RESULT_BYTES)]


class Charges(NamedTuple):
    """As exporter.skew.Charges: *unequal* [steps, ranks], *caused* [steps, ranks, stages],
    *pacer* and *stage* (a position in STAGES) [steps]; in the unit of what was charged."""

    unequal: Tensor
    caused: Tensor
    pacer: Tensor
    stage: Tensor


def members_by_size(groups: Tensor) -> list[Tensor]:
    """Return the ranks of the peer *groups* [ranks], those of one size as [groups, size]."""
    _, number_of, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    by_group = torch.argsort(number_of, stable=True).split(sizes.tolist())
    by_size: dict[int, list[Tensor]] = {}
    for members in by_group:
        by_size.setdefault(len(members), []).append(members)
    return [torch.stack(same) for same in by_size.values()]


def charge(durations: Tensor, members: Sequence[Tensor]) -> Charges:
    """Account for the steps in *durations* [steps, ranks, stages], of ranks in *members*.

    Whole numbers add up exactly, whatever the order; so durations are best in microseconds.
    """
    work = durations[:, :, :SYNC].to(torch.float64)
    busy = work.sum(dim=2)
    normal, normal_work = _normal(busy, members), _normal(work, members)
    heaviest = normal.amax(dim=1, keepdim=True)
    equal = torch.maximum(busy, torch.minimum(busy + (heaviest - normal), heaviest))
    over = work - normal_work
    had = work > 0
    among = over.where(had | ~had.any(dim=2, keepdim=True), -torch.inf)
    furthest = among.argmax(dim=2)  # of several that are equal the first, as busy's
    positive = over.clamp(min=0)
    whole = positive.sum(dim=2, keepdim=True)
    nowhere = torch.zeros_like(over).scatter_(2, furthest[:, :, None], 1.0)
    parts = torch.where(whole > 0, positive / whole, nowhere)
    caused = torch.zeros(durations.shape, dtype=torch.float64, device="cpu")
    caused[:, :, :SYNC] = _shared_waits(busy, equal)[:, :, None] * parts
    pacer = busy.argmax(dim=1)
    stage = furthest.gather(1, pacer[:, None])[:, 0]
    return Charges(equal - busy, caused, pacer, stage)


def _shared_waits(busy: Tensor, equal: Tensor) -> Tensor:
    """Return what each rank is charged [steps, ranks]; see exporter.skew._shared_waits.

    Between two moments in order, the waiters are the *equal* so far, the workers the *busy* to
    come. The moments of one time are in any order, since no time is between them.
    """
    ranks = busy.shape[1]
    moments, order = torch.cat([busy, equal], dim=1).sort(dim=1)
    done = (order[:, :-1] < ranks).cumsum(dim=1)
    waiting = torch.arange(1, 2 * ranks, dtype=torch.int64, device="cpu") - done
    working = (ranks - done).clamp_(min=1)  # None where all have ended, which takes no time.
    charged = torch.zeros_like(moments)
    charged[:, 1:] = (moments.diff(dim=1) * waiting / working).cumsum(dim=1)
    return torch.empty_like(moments).scatter_(1, order, charged)[:, :ranks]


def _normal(values: Tensor, members: Sequence[Tensor]) -> Tensor:
    """Return what is normal for each rank, along dimension 1: the baseline of its group."""
    if len(members) == 1 and len(members[0]) == 1:
        return _baseline(values[:, None])[:, 0]
    normal = torch.zeros_like(values)
    for same in members:
        each = _baseline(values[:, same])
        normal[:, same] = each.expand(-1, -1, same.shape[1], *each.shape[3:])
    return normal


def _baseline(values: Tensor) -> Tensor:
    """Return what is normal along dimension 2, which is kept; of two values the lower is."""
    count = values.shape[2]
    if count <= 2:
        return values.amin(dim=2, keepdim=True)
    position = BASELINE_QUANTILE * (count - 1)
    below = int(position)
    # It is many times faster along the last dimension.
    lines = values.movedim(2, -1).contiguous()
    low = lines.kthvalue(below + 1, dim=-1, keepdim=True).values
    high = lines.kthvalue(min(below + 1, count - 1) + 1, dim=-1, keepdim=True).values
    return (low + (high - low) * (position - below)).movedim(-1, 2)
