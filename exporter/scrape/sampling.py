"""What a scrape returns: every collector's latest output, and each collector's status."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as RegistryCollector

from exporter.collectors.base import Collector, NotAvailable
from exporter.scrape.levels import EVERYTHING, Shown
from exporter.scrape.status import Status

logger = logging.getLogger(__name__)

# A driver that loads later is picked up within a minute, at no cost before.
RETRY_SECONDS: Final = 60.0
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

    def sample(self) -> CollectorRun:
        """Run the collector now; whatever it raises is logged once and ends as a failed sample."""
        families: tuple[Metric, ...] = ()
        succeeded = False
        try:
            families = tuple(_renderable(family) for family in self.collector.collect())
            succeeded = True
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
    start() is called they too are read at the scrape. *makers* construct, by name, the collectors
    that this node may lack: one that raises NotAvailable is retried every minute and not listed. As
    constructors read files, the retries have a thread of their own from start() on. *shown* decides
    which of their series are yielded. *monotonic* measures all ages; *wall* says when a collector
    last succeeded, in Unix seconds.
    """

    def __init__(
        self,
        collectors: Iterable[Collector] = (),
        makers: Mapping[str, Callable[[], Collector]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        retry_seconds: float = RETRY_SECONDS,
        shown: Shown = EVERYTHING,
    ) -> None:
        self._wall = wall
        self._retry_seconds = retry_seconds
        self._shown = shown
        self.monotonic = monotonic
        self._sources = [Source(collector, monotonic, wall) for collector in collectors]
        # These three are replaced as a whole: a scrape may read them while a retry changes them.
        self._missing = dict(makers or {})
        self._broken: dict[str, str] = {}
        self._next_retry_seconds = float("-inf")
        self._threads: list[threading.Thread] = []
        self._started = False
        self._stopping = threading.Event()
        self._make_missing()

    def start(self) -> None:
        """Begin the background sampling."""
        self._started = True
        for source in self._sources:
            self._start_thread(source)
        self._run_in_background(self._retry_until_stopped, (), "rankskew-retry")

    def stop(self) -> None:
        """End the background sampling; a thread that hangs in its source is left behind."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=0.2)

    def is_ready(self) -> bool:
        """Whether every background collector has run once, or is known to hang."""
        return all(source.latest() is not None for source in self._sources if _is_slow(source))

    def latest(self, name: str) -> CollectorRun | None:
        """Return the latest sample of the collector *name*: None before its first, or without it.

        For what else needs the readings of a background collector; from any thread.
        """
        found = [source for source in self._sources if source.collector.name == name]
        return found[0].latest() if found else None

    def names(self) -> list[str]:
        """Return the collectors that collect() takes, whether or not this node has them."""
        made = {source.collector.name for source in self._sources}
        return sorted(made | self._missing.keys())

    def collect(
        self, names: Collection[str] | None = None, deadline: float | None = None
    ) -> Iterator[Metric]:
        """Yield every collector's families, then each collector's status.

        If *names* is given, only those collectors. A collector that would start after *deadline*,
        in seconds of monotonic(), is left out and counts as failed.
        """
        if not self._started:
            self._make_missing()
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
                status.add(
                    source.collector,
                    sample.succeeded,
                    source.last_success_timestamp_seconds,
                )
        for name in self._broken.keys() if names is None else self._broken.keys() & names:
            status.add_broken(name)
        yield from self._shown.of("", status.families())

    def _to_show(self, source: Source) -> CollectorRun | None:
        return source.latest() if self._started and _is_slow(source) else source.sample()

    def _make_missing(self) -> None:
        if self._missing and self.monotonic() >= self._next_retry_seconds:
            self._next_retry_seconds = self.monotonic() + self._retry_seconds
            self._retry()

    def _retry(self) -> None:
        self._missing = {
            name: make for name, make in self._missing.items() if not self._made(name, make)
        }

    def _retry_until_stopped(self) -> None:
        while self._missing and not self._stopping.wait(self._retry_seconds):
            self._retry()

    def _made(self, name: str, make: Callable[[], Collector]) -> bool:
        previous_error = self._broken.get(name)
        broken = {each: error for each, error in self._broken.items() if each != name}
        try:
            source = Source(make(), self.monotonic, self._wall)
        except NotAvailable as reason:
            _log(name, f"is not available: {reason}", logging.DEBUG)
            self._broken = broken
            return False
        except Exception as error:  # noqa: BLE001 - one broken source must not hide the others
            message = f"{type(error).__name__}: {error}"
            self._broken = broken | {name: message}
            if message != previous_error:
                _log(name, f"cannot start: {message}")
            return False
        self._broken = broken
        self._sources = [*self._sources, source]
        if self._started:
            self._start_thread(source)
        return True

    def _start_thread(self, source: Source) -> None:
        if not _is_slow(source):
            return
        name = f"rankskew-{source.collector.name}"
        self._run_in_background(self._sample_until_stopped, (source,), name)

    def _run_in_background(
        self, run: Callable[..., None], arguments: tuple[object, ...], name: str
    ) -> None:
        thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

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
