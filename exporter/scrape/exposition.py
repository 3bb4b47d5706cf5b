"""Renders /metrics: which collectors, until when, in which format; once for all who ask at once."""

import asyncio
import gzip
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from exporter.scrape.sampling import Scrape

# Level 1 makes a page a little larger than level 9 and takes a tenth of its time.
GZIP_LEVEL: Final = 1
# Our names need no escaping; these schemes would change them, and no rule would find them.
OTHER_NAMES: Final = re.compile(r";\s*escaping=(?:dots|values)\b")
TIMEOUT_HEADER: Final = "x-prometheus-scrape-timeout-seconds"
# Part of the scraper's timeout reserved for the network; never more than half of it.
MARGIN_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class ScrapeRequest:
    """What one scrape asks for; those that are equal can be given the same page.

    *collectors* None is all of them; *seconds* None is as long as it takes.
    """

    collectors: frozenset[str] | None = None
    seconds: float | None = None
    accept: str = ""
    compressed: bool = False


def wanted(collectors: list[str], asked: Mapping[str, str]) -> ScrapeRequest:
    """Return what a request with these names in `collect[]` and the headers *asked* wants."""
    return ScrapeRequest(
        frozenset(collectors) or None,
        _seconds(asked.get(TIMEOUT_HEADER, "")),
        asked.get("accept", ""),
        gzip_accepted(asked.get("accept-encoding", "")),
    )


def _seconds(timeout: str) -> float | None:
    """Return how long a page may take, None for a *timeout* that makes no sense."""
    try:
        seconds = float(timeout)
    except ValueError:
        return None
    if not 0 < seconds < math.inf:
        return None
    return max(seconds - MARGIN_SECONDS, seconds / 2)


class Exposition:
    """Renders the pages of *scrape*. Call from the event loop only, where the rank store lives.

    The data of a page is read only after every client that gets the page has asked for it.
    """

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._coming: dict[ScrapeRequest, asyncio.Task[bytes]] = {}

    def unknown(self, wanted: ScrapeRequest) -> str | None:
        """Say which of the wanted collectors this exporter does not have, None if it has all."""
        known = self._scrape.names()
        unknown = sorted((wanted.collectors or set()) - set(known))
        if not unknown:
            return None
        return (
            f"No collector is called {unknown[0][:40]!a}; "
            f"enabled collectors: {', '.join(known) or 'none'}."
        )

    async def page(self, wanted: ScrapeRequest) -> tuple[bytes, dict[str, str]]:
        """Return the page and its headers."""
        page = self._coming.get(wanted)
        if page is None:
            page = self._coming[wanted] = asyncio.create_task(self._render(wanted))
        # Shielded: a client that leaves must not cancel the page for the others.
        return await asyncio.shield(page), headers(wanted)

    async def _render(self, wanted: ScrapeRequest) -> bytes:
        """Render once everyone who has already asked is waiting for it."""
        deadline = None if wanted.seconds is None else self._scrape.monotonic() + wanted.seconds
        await asyncio.sleep(0)
        del self._coming[wanted]  # Later requests get a newer page.
        page = ScrapedFamilies(self._scrape.collect(wanted.collectors, deadline))
        encode, _ = _format(wanted)
        return packed(encode(page), wanted)


class ScrapedFamilies(Collector):
    """The families of one scrape, as prometheus_client's encoders take them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def packed(body: bytes, wanted: ScrapeRequest) -> bytes:
    """Return *body* as it is sent: compressed if that was asked for."""
    return gzip.compress(body, GZIP_LEVEL) if wanted.compressed else body


def headers(wanted: ScrapeRequest) -> dict[str, str]:
    """Return the headers of a page."""
    _, content_type = _format(wanted)
    found = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    return found | ({"Content-Encoding": "gzip"} if wanted.compressed else {})


def _format(wanted: ScrapeRequest) -> tuple[Callable[[Collector], bytes], str]:
    """Return the encoder of the format that was asked for, and its content type."""
    try:
        return choose_encoder(OTHER_NAMES.sub("", wanted.accept))
    except (TypeError, ValueError):  # Of a version that is no number.
        return choose_encoder("")
