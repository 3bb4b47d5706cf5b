"""Who has fetched /metrics lately, so that `rank-probe check` can say whether anybody scrapes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rank_probe.wire.text import printable

# A few Prometheus replicas and whoever looks by hand; a flood of addresses costs no more memory.
MOST_REMEMBERED: Final = 16
AGENT_CHARACTERS: Final = 64
# How a listener on every address names an IPv4 client.
MAPPED_IPV4: Final = "::ffff:"


@dataclass(frozen=True, slots=True)
class Scraper:
    """A client of /metrics: its *address*, the *agent* it says it is, and its last fetch."""

    address: str
    agent: str
    seconds_ago: float


class Scrapers:
    """The last clients of /metrics, one entry per address. Call from the event loop only.

    It is no metric: an address is not a closed set of labels.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By address, the longest ago first.
        self._seen: dict[str, tuple[str, float]] = {}

    def see(self, address: str, agent: str) -> None:
        """Remember that a page went to *address*."""
        address = address.removeprefix(MAPPED_IPV4)
        self._seen.pop(address, None)
        self._seen[address] = (printable(agent, AGENT_CHARACTERS), self._clock())
        if len(self._seen) > MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def latest(self) -> list[Scraper]:
        """Return the remembered clients, the latest first."""
        now = self._clock()
        return [
            Scraper(address, agent, round(now - seen, 1))
            for address, (agent, seen) in reversed(self._seen.items())
        ]
