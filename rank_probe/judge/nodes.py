"""Nodes: what most ranks of one have in common is the node's, and no rank's."""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from rank_probe.judge.evidence import LEAVE_RATIO, WindowEvidence, seen_in
from rank_probe.judge.windows import Reduction, Window

# Share of a node's ranks that must be late for the node to be named.
NODE_SHARE: Final = 0.6


class Nodes:
    """Compares the ranks of each node, in a job of several nodes with several ranks."""

    def __init__(self, reduction: Reduction) -> None:
        self._of = reduction.nodes
        self._sizes = Counter(reduction.nodes.values())

    def shared(self, window: Window) -> dict[int, float]:
        """Return the excess ratio that NODE_SHARE of the ranks of each node reach.

        Nodes with fewer ranks that stand out are left out.
        """
        excess: dict[int, list[float]] = {}
        for seen in seen_in([window]):
            node = self._of.get(seen.standing.rank)
            if node is not None:
                excess.setdefault(node, []).append(seen.excess)
        found = {}
        for node, theirs in excess.items():
            most = max(math.ceil(NODE_SHARE * self._sizes[node]), 2)
            if len(self._sizes) > 1 and len(theirs) >= most:
                found[node] = sorted(theirs, reverse=True)[most - 1]
        return found

    def sharing(self, window: Window, late: Collection[int]) -> Iterator[WindowEvidence]:
        """Yield the ranks that share the excess of one of the *late* nodes that is so still."""
        shared = self.shared(window)
        for seen in seen_in([window]):
            node = self._of.get(seen.standing.rank, -1)
            excess = shared.get(node, 0.0)
            if node in late and excess > LEAVE_RATIO and seen.excess > excess / 2:
                yield seen

    def share(self, seen: WindowEvidence) -> bool:
        """Whether most ranks of its node are at least half as late as this one."""
        shared = self.shared(seen.window).get(self._of.get(seen.standing.rank, -1), 0.0)
        return shared > 0 and seen.excess <= 2 * shared
