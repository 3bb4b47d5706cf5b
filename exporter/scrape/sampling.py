"""What a scrape returns: every collector's latest output, and each collector's status."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as RegistryCollector

from exporter.collectors.base import Collector
from exporter.scrape.levels import EVERYTHING, Shown

logger = logging.getLogger(__name__)

# Background output this many intervals old no longer describes the node: its source hangs.
STALE_INTERVALS: Final = 10.0
STALE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class CollectorRun:
    """One run of one collector, which ended at *sampled_seconds* of the monotonic clock.

    *families* is empty when it failed.
    """

    families: tuple[Metric, ...]
    succeeded: bool
    sampled_seconds: float


class Source:
    """One collector, its latest sample, and the errors that were already logged."""

    def __init__(
        self, collector: Collector, monotonic: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self.collector = collector
        self._monotonic = monotonic
        self._wall = wall
        self._created_seconds = monotonic()
        self._logged_errors: set[str] = set()
        self._hang_is_logged = False
        # Replaced as a whole, so a scrape never sees half of a background sample.
        self._latest: CollectorRun | None = None
        self.last_success_timestamp_seconds: float | None = None
        # This node has what it reads.
        self.has_shown = False

    def sample(self) -> CollectorRun:
        """Run the collector now; whatever it raises is logged once and ends as a failed sample."""
        families: tuple[Metric, ...] = ()
        succeeded = False
        try:
            families = tuple(_renderable(family) for family in self.collector.collect())
            succeeded = True
            self.has_shown = self.has_shown or any(family.samples for family in families)
            if self._latest is None and not self.has_shown:
                _log(self.collector.name, "has no series: nothing of it is here", logging.DEBUG)
        except Exception as error:  # noqa: BLE001 - one broken source must not hide the others
            self._log_once(error)
        sample = CollectorRun(families, succeeded, self._monotonic())
        self._latest = sample
        if succeeded:
            self.last_success_timestamp_seconds = self._wall()
        return sample

    def too_late(self) -> CollectorRun:
        """Return a failed sample: the collectors before this one took all the time there is."""
        self._log_once(TimeoutError("no time was left for it in the scrape"))
        return CollectorRun((), False, self._monotonic())

    def latest(self) -> CollectorRun | None:
        """Return the latest background sample: None before the first, a failed one in a hang."""
        sample = self._latest
        since_seconds = self._created_seconds if sample is None else sample.sampled_seconds
        quiet_seconds = self._monotonic() - since_seconds
        if quiet_seconds <= max(STALE_INTERVALS * self.collector.interval_seconds, STALE_SECONDS):
            self._hang_is_logged = False
            return sample
        if not self._hang_is_logged:
            _log(self.collector.name, "hangs: its series are dropped")
            self._hang_is_logged = True
        return CollectorRun((), False, since_seconds)

    def _log_once(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        if message not in self._logged_errors and len(self._logged_errors) < 100:
            self._logged_errors.add(message)
            _log(self.collector.name, f"failed: {message}")


class Scrape(RegistryCollector):
    """Runs collectors and renders them; register it in a CollectorRegistry.

    A collector with *interval_seconds* 0 is read at every scrape. Each of the others has its own
    background thread from start() to stop(), so one that hangs does not block the others; until
    start() is called they too are read at the scrape. A collector without any series so far reads
    what this node lacks; it is listed only while it fails. *shown* decides which series to yield.
    *monotonic* measures all ages; *wall* says when a collector last succeeded, in Unix seconds.
    """

    def __init__(
        self,
        collectors: Iterable[Collector] = (),
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        shown: Shown = EVERYTHING,
    ) -> None:
        self._shown = shown
        self.monotonic = monotonic
        self._sources = [Source(collector, monotonic, wall) for collector in collectors]
        self._threads: list[threading.Thread] = []
        self._started = False
        self._stopping = threading.Event()

    def start(self) -> None:
        """Begin the background sampling."""
        self._started = True
        for source in filter(_is_slow, self._sources):
            name = f"rankskew-{source.collector.name}"
            thread = threading.Thread(
                target=self._sample_until_stopped, args=(source,), name=name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the background sampling; a thread that hangs in its source is left behind."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=0.2)

    def is_ready(self) -> bool:
        """Whether every background collector has run once, or is known to hang."""
        return all(source.latest() is not None for source in self._sources if _is_slow(source))

    def latest(self, name: str) -> CollectorRun | None:
        """Return the latest sample of the collector *name*; None before its first, or if it is off.

        For other users of a background collector's readings; call from any thread.
        """
        found = [source for source in self._sources if source.collector.name == name]
        return found[0].latest() if found else None

    def names(self) -> list[str]:
        """Return the collectors that collect() takes, also those whose source this node lacks."""
        return sorted(source.collector.name for source in self._sources)

    def collect(
        self, names: Collection[str] | None = None, deadline: float | None = None
    ) -> Iterator[Metric]:
        """Yield every collector's families, then each collector's status.

        If *names* is given, only those collectors. A collector that would start after *deadline*,
        in seconds of monotonic(), is left out and counts as failed.
        """
        status = Status()
        for source in self._sources:
            if names is not None and source.collector.name not in names:
                continue
            if deadline is not None and self.monotonic() > deadline:
                sample: CollectorRun | None = source.too_late()
            else:
                sample = self._to_show(source)
            if sample is not None:
                yield from self._shown.of(source.collector.name, sample.families)
                if source.has_shown or not sample.succeeded:
                    status.add(
                        source.collector,
                        sample.succeeded,
                        source.last_success_timestamp_seconds,
                    )
        yield from self._shown.of("", status.families())

    def _to_show(self, source: Source) -> CollectorRun | None:
        return source.latest() if self._started and _is_slow(source) else source.sample()

    def _sample_until_stopped(self, source: Source) -> None:
        while not self._stopping.is_set():
            source.sample()
            self._stopping.wait(source.collector.interval_seconds)


def _log(name: str, what: str, level: int = logging.ERROR) -> None:
    logger.log(level, "collector %s %s", name, what, extra={"collector": name})


def _is_slow(source: Source) -> bool:
    return source.collector.interval_seconds > 0


def _renderable(family: Metric) -> Metric:
    """Return *family*, or raise here what would otherwise break the whole page later."""
    for sample in family.samples:
        float(sample.value)
        try:
            "".join(sample.labels.values())  # Looks at each value's type, in a tenth of the time.
        except TypeError as error:
            raise TypeError(f"{sample.name} has a label value that is not a string") from error
    return family


class Status:
    """The status of the collectors of one scrape.

    Collectors that only read memory have status series only while they fail: their data has its own
    freshness, and two series for each would use up most of a node's budget. The time of the last
    success matters only while a collector fails.
    """

    def __init__(self) -> None:
        self._success = GaugeMetricFamily(
            "rankskew_collector_success",
            "1 if the collector's latest run succeeded, 0 if it failed and its series are "
            "missing. A collector that only reads memory is listed only while it fails.",
            labels=["collector"],
        )
        self._last_success = GaugeMetricFamily(
            "rankskew_collector_last_success_timestamp_seconds",
            "Time at which the collector last succeeded, in Unix seconds; only while it fails, and "
            "for collectors that run in the background.",
            labels=["collector"],
        )

    def add(
        self,
        collector: Collector,
        succeeded: bool,
        last_success_timestamp_seconds: float | None,
    ) -> None:
        """Add the latest run of *collector*, and when one last succeeded: None if never."""
        labels = [collector.name]
        in_background = collector.interval_seconds > 0
        if in_background or not succeeded:
            self._success.add_metric(labels, float(succeeded))
        if in_background and not succeeded and last_success_timestamp_seconds is not None:
            self._last_success.add_metric(labels, last_success_timestamp_seconds)

    def families(self) -> Iterator[Metric]:
        """Yield what was added."""
        yield from (self._success, self._last_success)
