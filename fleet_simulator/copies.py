"""Pages of a very large fleet, where many nodes differ from another one in names only."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from exporter.scrape.exposition import ScrapeRequest, packed
from fleet_simulator.node import SimulatedNode

# Of a job, so many usual nodes have readings of their own, which the others repeat.
ORIGINALS: Final = 8
# For so long readings are repeated. It is the error of a window, in seconds, when Prometheus
# computes a rate.
FRESH_SECONDS: Final = 1.0


class Copies:
    """Makes the pages of nodes from that of *original*; *now* is the time of the simulation."""

    def __init__(self, original: SimulatedNode, now: Callable[[], float]) -> None:
        self._original = original
        self._now = now
        names = "|".join(re.escape(name) for name in original.names)
        self._named = re.compile(rf"(?<=[{{,])({names})")
        self._rendered: dict[ScrapeRequest, tuple[float, list[str]]] = {}

    async def page(self, node: SimulatedNode, wanted: ScrapeRequest) -> bytes:
        """Return the page of *node*, which has as many ranks as the original."""
        pieces = list(await self._pieces(replace(wanted, seconds=None, compressed=False)))
        renamed = dict(zip(self._original.names, node.names, strict=True))
        # The names are every second piece.
        pieces[1::2] = [renamed[name] for name in pieces[1::2]]
        return packed("".join(pieces).encode(), wanted)

    async def _pieces(self, wanted: ScrapeRequest) -> list[str]:
        now = self._now()
        if wanted in self._rendered:
            rendered, pieces = self._rendered[wanted]
            if now - rendered < FRESH_SECONDS:
                return pieces
        self._original.advance(now)
        page, _ = await self._original.exposition.page(wanted)
        pieces = self._named.split(page.decode())
        self._rendered[wanted] = now, pieces
        return pieces


def copied(nodes: Sequence[SimulatedNode], now: Callable[[], float]) -> dict[str, Copies]:
    """Return what makes the page of each of the *nodes* of a job that is a copy, by its name."""
    usual = [node for node in nodes if node.is_usual]
    originals = [Copies(node, now) for node in usual[:ORIGINALS]]
    return {
        node.name: originals[number % ORIGINALS] for number, node in enumerate(usual[ORIGINALS:])
    }
