"""A scrape shows the latest output of each collector: the core, and detail that is asked for."""

import asyncio
import gzip
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.scrape.exposition import Exposition, ScrapeRequest, wanted
from exporter.scrape.levels import ALL, LEVELS, PARTS, Shown, exposed_name
from exporter.scrape.sampling import STALE_INTERVALS, STALE_SECONDS, Scrape
from fleet_simulator.fleet import Fleet, fleet_app
from fleet_simulator.plan import equal_jobs
from generators.metrics import families_by_collector
from tests.exporter.asgi import ask
from tests.exporter.node import Clock
from tests.exporter.running import wait_until
from tests.repo.test_alerts import core_files, read_by_rules


class FakeCollector:
    """Yields *read()* as one gauge named after it, and how often it was read as another."""

    def __init__(
        self, name: str, read: Callable[[], object] = lambda: 1.0, interval_seconds: float = 0.0
    ) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.runs = 0
        self._read = read

    def collect(self) -> Iterable[Metric]:
        self.runs += 1
        yield GaugeMetricFamily(f"rankskew_{self.name}_reads", "Made before.", value=self.runs)
        family = GaugeMetricFamily(f"rankskew_{self.name}", "A reading.")
        family.add_metric([], self._read())  # type: ignore[arg-type] # broken values on purpose
        yield family


def expose(scrape: Scrape) -> str:
    registry = CollectorRegistry()
    registry.register(scrape)
    return generate_latest(registry).decode()


@contextmanager
def started(scrape: Scrape) -> Iterator[None]:
    """Sample in the background, until nobody does any more."""
    scrape.start()
    try:
        yield
    finally:
        scrape.stop()
    threads = {f"rankskew-{name}" for name in scrape.names()}
    wait_until(lambda: not threads & {each.name for each in threading.enumerate()})


@pytest.mark.parametrize("interval_seconds", [0.0, 1.0])
def test_collector_is_exposed_with_how_it_did(
    interval_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    """`success == 0` finds a failing collector, and its series return once it works again.

    A background collector also exposes its success and the time of it. The thirty that only read
    memory expose failures only. A failure that repeats every second does not fill the log.
    """
    message = ""

    def read() -> float:
        if message:
            raise OSError(message)
        return 1.0

    scrape = Scrape([FakeCollector("it", read, interval_seconds)], wall=lambda: 1_234.5)
    well = ['success{collector="it"} 1.0'] if interval_seconds else []
    failing = ['success{collector="it"} 0.0']
    if interval_seconds:
        failing.append('last_success_timestamp_seconds{collector="it"} 1234.5')
    for message in ("", "gone", "gone", "lost", "gone", ""):
        page = expose(scrape)
        said = re.findall(r"^rankskew_collector_(.*)", page, re.MULTILINE)
        assert said == (failing if message else well)
        assert ("rankskew_it 1.0" in page) == (message == "")
    assert caplog.messages == [f"collector it failed: OSError: {why}" for why in ("gone", "lost")]


def broken_reading() -> float:
    raise OSError("no such device")


class Unlabelled(FakeCollector):
    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("rankskew_broken", "A reading.", labels=["gpu"])
        family.add_metric([None], 1)  # type: ignore[list-item] # the mistake under test
        yield family


@pytest.mark.parametrize(
    "broken",
    [
        FakeCollector("broken", broken_reading),
        FakeCollector("broken", lambda: "many"),
        Unlabelled("broken"),
    ],
)
def test_broken_collector_loses_all_it_made_and_hides_nobody(broken: FakeCollector) -> None:
    """A collector that raises or yields nonsense shows nothing but its failure."""
    text = expose(Scrape([broken, FakeCollector("fine")]))

    assert "rankskew_broken" not in text
    assert "rankskew_fine 1.0" in text
    assert re.findall(r"^rankskew_collector_.*", text, re.MULTILINE) == [
        'rankskew_collector_success{collector="broken"} 0.0'
    ]


def test_slow_collector_runs_in_the_background_only(caplog: pytest.LogCaptureFixture) -> None:
    """Once started, a scrape renders the latest sample, as others may, and reads nothing.

    Ages are of a clock that nobody sets; a node may start with the time of 1970.
    """
    wall, monotonic = Clock(0.0), Clock()
    slow, quick = FakeCollector("slow", interval_seconds=3_600), FakeCollector("quick")
    scrape = Scrape([slow, quick], monotonic=monotonic, wall=wall)
    assert scrape.latest("slow") is None
    with started(scrape):
        wait_until(scrape.is_ready)
        for wall.seconds in (1.8e9, 0.0):
            assert "rankskew_slow 1.0" in expose(scrape)
        sample = scrape.latest("slow")
        monotonic.seconds += STALE_INTERVALS * 3_600 + 1
        assert "rankskew_slow 1.0" not in expose(scrape)

    assert sample is not None
    assert [family.name for family in sample.families] == ["rankskew_slow_reads", "rankskew_slow"]
    assert (slow.runs, quick.runs, scrape.latest("fast")) == (1, 3, None)
    assert caplog.messages == ["collector slow hangs: its series are dropped"]


def test_hanging_collector_loses_its_series_and_holds_up_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A source that never returns fails after a while; the others continue, and readiness comes.

    A value that can no longer be read is not shown as if it were.
    """
    clock, released, gone = Clock(), threading.Event(), threading.Event()
    hanging = FakeCollector("hanging", released.wait, interval_seconds=0.001)
    fine = FakeCollector(
        "fine", lambda: broken_reading() if gone.is_set() else 1.0, interval_seconds=0.001
    )
    scrape = Scrape([hanging, fine], monotonic=clock)
    with started(scrape):
        wait_until(lambda: 'success{collector="fine"} 1.0' in expose(scrape))
        assert "hanging" not in expose(scrape)
        assert not scrape.is_ready()
        clock.seconds += STALE_SECONDS + 1
        wait_until(lambda: 'success{collector="fine"} 1.0' in expose(scrape))
        page = expose(scrape)
        assert scrape.is_ready()
        # The clock stands still: the failure drops the series, not their age.
        gone.set()
        wait_until(lambda: 'success{collector="fine"} 0.0' in expose(scrape))
        failed = expose(scrape)
        released.set()

    assert 'rankskew_collector_success{collector="hanging"} 0.0' in page
    assert caplog.messages.count("collector hanging hangs: its series are dropped") == 1
    assert "rankskew_fine" not in failed
    assert 'last_success_timestamp_seconds{collector="fine"}' in failed


class Lacking(FakeCollector):
    """Has nothing to read until *has_driver*."""

    has_driver = False

    def collect(self) -> Iterable[Metric]:
        return super().collect() if self.has_driver else ()


def test_collector_whose_source_this_node_lacks_is_not_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A driver that loads later is picked up; until then neither success nor failure is exposed.

    The debug log mentions the collector once. A scrape may still request it by name.
    """
    caplog.set_level(logging.DEBUG)
    collector = Lacking("gpu", interval_seconds=1.0)
    scrape = Scrape([collector])
    assert scrape.names() == ["gpu"]
    assert "gpu" not in expose(scrape) + expose(scrape)
    collector.has_driver = True
    assert "rankskew_gpu 1.0" in expose(scrape)
    collector.has_driver = False
    assert 'success{collector="gpu"} 1.0' in expose(scrape)
    assert caplog.messages == ["collector gpu has no series: nothing of it is here"]


OPENMETRICS = "application/openmetrics-text"


def test_equal_scrapes_that_arrive_together_share_one_reading() -> None:
    """Two Prometheus replicas cost as much as one; a scrape after an answer gets a newer page.

    Each gets the format, compression and collectors that it asked for. A client that disconnects
    while its page is rendered does not cancel it for the others.
    """
    one = FakeCollector("one")
    exposition = Exposition(Scrape([one, FakeCollector("two")]))
    asked = [
        ScrapeRequest(compressed=True),
        ScrapeRequest(accept=f"{OPENMETRICS};version=1.0.0"),
        ScrapeRequest(frozenset({"two"})),
        *[ScrapeRequest()] * 50,
    ]

    async def pages() -> list[bytes]:
        leaving = asyncio.create_task(exposition.page(asked[0]))
        tasks = [asyncio.create_task(exposition.page(each)) for each in asked]
        await asyncio.sleep(0)
        leaving.cancel()
        answers = await asyncio.gather(*tasks)
        return [body for body, _ in [*answers, await exposition.page(ScrapeRequest())]]

    compressed, openmetrics, two, *plain, later = asyncio.run(pages())
    assert b"rankskew_one_reads 1.0" in gzip.decompress(compressed)
    assert openmetrics.endswith(b"# EOF\n")
    assert b"rankskew_one" not in two
    assert b"rankskew_two_reads 3.0" in two
    assert len(set(plain)) == 1
    assert not plain[0].endswith(b"# EOF\n")
    assert b"rankskew_one_reads 3.0" in plain[0]
    assert b"rankskew_one_reads 4.0" in later
    assert one.runs == 4


def test_names_are_the_same_for_every_scraper() -> None:
    """Whatever scheme of escaping a Prometheus is set to, our rules find the series.

    A version that makes no sense gets a page, too.
    """
    exposition = Exposition(Scrape([FakeCollector("fine")]))

    def page(accept: str) -> tuple[bytes, str]:
        body, headers = asyncio.run(exposition.page(wanted([], {"accept": accept})))
        return body, headers["Content-Type"]

    for kind in ("text/plain", OPENMETRICS):
        for scheme in ("allow-utf-8", "underscores", "dots", "values", "x"):
            body, answered = page(f"{kind};version=1.0.0;escaping={scheme};q=0.6,*/*;q=0.1")
            assert b"\nrankskew_fine 1.0\n" in body
            assert answered.startswith(f"{kind}; version=1.0.0")
    for version in ("x", "1.x", "1.\xb2", "="):
        assert b"\nrankskew_fine 1.0\n" in page(f"{OPENMETRICS};version={version}")[0]


def test_page_is_due_before_the_scraper_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    """Half a second of the timeout is left for the way, or half of a short one.

    A slow reading costs the collectors after it, not the whole page; it is logged once.
    """
    due = {"10": 9.5, "2.5": 2.0, "0.5": 0.25, "": None, "ten": None, "nan": None, "-1": None}
    for header, seconds in due.items():
        assert wanted([], {"x-prometheus-scrape-timeout-seconds": header}).seconds == seconds
    clock = Clock()

    def take_three_seconds() -> float:
        clock.seconds += 3
        return 1.0

    late = FakeCollector("late")
    exposition = Exposition(Scrape([FakeCollector("slow", take_three_seconds), late], clock))

    async def ask(*seconds: float) -> list[bytes]:
        return [(await exposition.page(ScrapeRequest(seconds=each)))[0] for each in seconds]

    *hurried, patient = asyncio.run(ask(2.5, 2.5, 3.0))
    for page in hurried:
        assert b"rankskew_slow 1.0" in page
        assert b"rankskew_late" not in page
        assert b'rankskew_collector_success{collector="late"} 0.0' in page
    assert b"rankskew_late_reads 1.0" in patient
    assert b'collector="late"' not in patient
    assert caplog.messages == [
        "collector late failed: TimeoutError: no time was left for it in the scrape"
    ]


def counts(name: str, *values: tuple[str, float]) -> Metric:
    """A family with a series for each GPU."""
    family = CounterMetricFamily(name, "Help.", labels=["gpu"])
    for gpu, value in values:
        family.add_metric([gpu], value)
    return family


def shown(families: Iterable[Metric]) -> list[str]:
    """Return the names and first labels of what is shown."""
    return [" ".join([s.name, *s.labels.values()]) for family in families for s in family.samples]


def test_core_is_shown_and_detail_is_for_those_who_ask() -> None:
    """Series that no list names are detail; the SM clock is core, the memory clock is detail.

    Detail of a collector means all series of that collector, zeros too, and of no other.
    """
    clocks = GaugeMetricFamily("rankskew_gpu_clock_hertz", "Help.", labels=["clock"])
    for clock in ("sm", "memory"):
        clocks.add_metric([clock], 1.0)
    names = ("steps", "rank_read_bytes", "something_new", "gpu_xid_events")
    families = [*(counts(f"rankskew_{name}_total", ("0", 0.0)) for name in names), clocks]
    series = [*(f"rankskew_{name}_total 0" for name in names), "rankskew_gpu_clock_hertz sm"]
    core, whole = [series[0], series[-1]], [*series, "rankskew_gpu_clock_hertz memory"]

    for detail, expected in {"": core, "gpu_xid": core, "ranks": whole, ALL: whole}.items():
        assert shown(Shown(frozenset({detail})).of("ranks", families)) == expected


def test_count_of_trouble_is_shown_from_the_first_trouble_on() -> None:
    """It stays when it goes back to 0, and is forgotten with its GPU."""
    exporter = Shown()
    name = "rankskew_gpu_xid_events_total"
    for values, expected in (
        ({"0": 0.0, "1": 0.0}, []),
        ({"0": 0.0, "1": 2.0}, [f"{name} 1"]),
        ({"0": 0.0, "1": 0.0}, [f"{name} 1"]),
        ({"0": 0.0}, []),
        ({"0": 0.0, "1": 0.0}, []),
    ):
        assert shown(exporter.of("gpu_xid", [counts(name, *values.items())])) == expected


def test_simulated_node_stays_within_its_budget(tmp_path: Path) -> None:
    """For eight GPUs and ranks 400 series, 1,000 with all detail: 20 a rank, 20 a GPU, 80 more."""
    pages = {}
    for detail in ("", ALL):
        clock = Clock()
        fleet = Fleet(equal_jobs(2, 8, 1, []), tmp_path / detail, clock, frozenset({detail}))
        for _ in range(2):
            answer = ask(fleet_app(fleet, ""), "GET", "/node/sim-01/metrics")
            clock.seconds += 300.0
        assert answer is not None
        pages[detail] = re.findall(r"^[^#].*", answer.text, re.MULTILINE)
    of_rank = re.compile(r'(?<![a-z_])rank="(\d+)"')
    ranks = Counter(of_rank.findall("\n".join(pages[""])))
    alone = [line for line in pages[""] if not of_rank.search(line)]
    gpus = Counter(re.findall(r'gpu="(\d+)"', "\n".join(alone)))

    assert len(ranks) == len(gpus) == 8
    assert max(ranks.values()) <= 20
    assert max(gpus.values()) <= 20
    assert sum('gpu="' not in line for line in alone) <= 80
    assert len(pages[""]) <= 400 < len(pages[ALL]) <= 1_000


def test_lists_name_what_is_exposed_and_what_rules_read() -> None:
    """Alerts work on every exporter, and a metric that is renamed does not become detail."""
    exposed = {exposed_name(f) for _, _, families in families_by_collector() for f in families}
    read = exposed & set().union(*map(read_by_rules, core_files()))

    assert read
    assert read - {*LEVELS, *PARTS} == set()
    exposed |= {name for name in LEVELS if name.startswith("process_")}
    assert {*LEVELS, *PARTS} - exposed == set()
    assert not LEVELS.keys() & PARTS.keys()
