"""Aligns the ranks' messages: the steps that all of them hold, as one tensor.

Every tensor names its device and dtype, because a training may have changed both defaults.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from rank_probe.guest.yielding import give_way
from rank_probe.join.ring import HEAD, MAGIC, ROW
from rank_probe.wire.stages import STAGES

_WORDS_IN_HEAD: Final = HEAD.size // 4
_WORDS_IN_ROW: Final = ROW.size // 4


class Aligned(NamedTuple):
    """The *steps* that all *ranks* hold: their *microseconds* [steps, ranks, stages] as int32.

    *groups* and *nodes* [ranks] are digests, as int64.
    """

    steps: list[int]
    ranks: Sequence[int]
    microseconds: Tensor
    groups: Tensor
    nodes: Tensor


class Alignment:
    """The steps in *candidates* that the message of each of *ranks* holds, message by message."""

    def __init__(self, candidates: Sequence[int], ranks: Sequence[int], world_size: int) -> None:
        self._ranks = ranks
        self._world_size = world_size
        self._candidates = torch.tensor(sorted(candidates), dtype=torch.int32, device="cpu")
        self._found = torch.ones(len(candidates), dtype=torch.bool, device="cpu")
        shape = (len(ranks), len(candidates), len(STAGES))
        self._microseconds = torch.zeros(shape, dtype=torch.int32, device="cpu")
        self._digests = torch.zeros((len(ranks), 2), dtype=torch.int64, device="cpu")
        self._next = 0

    def add(self, messages: Sequence[bytes]) -> bool:
        """Add the messages of the next ranks.

        Returns False if no step can be common any more: a message has no steps, or is not a message
        of this version and world.
        """
        by_length: dict[int, list[int]] = {}
        for position, message in enumerate(messages):
            by_length.setdefault(len(message), []).append(position)
        first, self._next = self._next, self._next + len(messages)
        return all(
            self._add_same(first, positions, [messages[each] for each in positions], length)
            for length, positions in by_length.items()
        )

    def _add_same(
        self, first: int, positions: list[int], messages: list[bytes], length: int
    ) -> bool:
        rows, rest = divmod(length - HEAD.size, ROW.size)
        if rows <= 0 or rest:
            return False
        # A writable copy, or torch warns.
        words = torch.frombuffer(bytearray().join(messages), dtype=torch.int32)
        words = words.view(len(messages), length // 4)
        give_way()
        expected = torch.tensor([MAGIC, self._world_size], dtype=torch.int32, device="cpu")
        if not torch.equal(words[:, :2], expected.expand(len(messages), 2)):
            return False
        give_way()
        at = torch.tensor(positions, dtype=torch.int64, device="cpu") + first
        self._digests[at] = words[:, 2:_WORDS_IN_HEAD].contiguous().view(torch.int64)
        give_way()
        cells = words[:, _WORDS_IN_HEAD:].view(len(messages), rows, _WORDS_IN_ROW)
        steps = cells[:, :, 0].contiguous()
        wanted = self._candidates.expand(len(messages), -1).contiguous()
        give_way()
        found = torch.searchsorted(steps, wanted).clamp_(max=rows - 1)
        self._found &= (steps.gather(1, found) == wanted).all(dim=0)
        give_way()
        vectors = cells[:, :, 1:]
        self._microseconds[at] = torch.take_along_dim(vectors, found[:, :, None], dim=1)
        return bool(self._found.any())

    def common(self) -> Aligned:
        """Return what all ranks hold."""
        steps: list[int] = self._candidates[self._found].tolist()
        give_way()
        microseconds = self._microseconds[:, self._found].transpose(0, 1)
        return Aligned(steps, self._ranks, microseconds, self._digests[:, 0], self._digests[:, 1])
