"""Simultaneous requests share a page, which is never older than the request, and in time."""

import asyncio
import gzip
from collections.abc import Callable, Iterable

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.scrape.exposition import Exposition, ScrapeRequest, wanted
from exporter.scrape.sampling import Scrape


class Counting:
    """A collector that counts how often it is read, and shows the count."""

    interval_seconds = 0.0

    def __init__(self, name: str = "counting", on_read: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.reads = 0
        self._on_read = on_read

    def collect(self) -> Iterable[Metric]:
        self.reads += 1
        self._on_read()
        yield GaugeMetricFamily(f"rankskew_{self.name}_reads", "Reads.", value=self.reads)


async def together(exposition: Exposition, asked: list[ScrapeRequest]) -> list[bytes]:
    answers = await asyncio.gather(*(exposition.page(each) for each in asked))
    return [body for body, _ in answers]


def test_scrapes_that_arrive_together_share_one_reading() -> None:
    """Two Prometheus replicas cost as much as one; who asks after an answer gets a newer page."""
    collector = Counting()
    exposition = Exposition(Scrape([collector]))

    async def ask() -> tuple[list[bytes], list[bytes]]:
        pages = await together(exposition, [ScrapeRequest()] * 50)
        return pages, [(await exposition.page(ScrapeRequest()))[0] for _ in range(2)]

    pages, later = asyncio.run(ask())
    assert len(set(pages)) == 1
    assert all(b"rankskew_counting_reads %d.0" % n in page for n, page in enumerate(later, 2))
    assert collector.reads == 3


@pytest.mark.parametrize("version", ["x", "1.x", "1.\xb2", "1.0.0;escaping=x", "..", "=", "\xb2"])
def test_format_that_makes_no_sense_gets_a_page(version: str) -> None:
    asked = wanted([], {"accept": f"application/openmetrics-text;version={version}"})
    body, headers = asyncio.run(Exposition(Scrape([Counting()])).page(asked))

    assert b"rankskew_counting_reads 1.0" in body
    assert headers["Content-Type"]


@pytest.mark.parametrize("scheme", ["allow-utf-8", "underscores", "dots", "values"])
@pytest.mark.parametrize("format", ["text/plain", "application/openmetrics-text"])
def test_names_are_the_same_for_every_scraper(format: str, scheme: str) -> None:
    """Whatever scheme of escaping a Prometheus is set to, our rules find the series."""
    asked = wanted([], {"accept": f"{format};version=1.0.0;escaping={scheme};q=0.6,*/*;q=0.1"})
    body, headers = asyncio.run(Exposition(Scrape([Counting()])).page(asked))

    assert b"\nrankskew_counting_reads 1.0\n" in body
    assert headers["Content-Type"].startswith(f"{format}; version=1.0.0")


def test_different_questions_get_their_own_pages() -> None:
    """Format, compression and collectors are as each asked."""
    exposition = Exposition(Scrape([Counting("one"), Counting("two")]))
    asked = [
        ScrapeRequest(),
        ScrapeRequest(compressed=True),
        ScrapeRequest(accept="application/openmetrics-text;version=1.0.0"),
        ScrapeRequest(frozenset({"two"})),
    ]
    plain, compressed, openmetrics, two = asyncio.run(together(exposition, asked))

    assert b"rankskew_one_reads " in gzip.decompress(compressed)
    assert not plain.endswith(b"# EOF\n")
    assert openmetrics.endswith(b"# EOF\n")
    assert b"rankskew_one" not in two
    assert b"rankskew_two_reads 4.0" in two


def test_one_who_leaves_does_not_take_the_page_from_the_others() -> None:
    """A scraper that gives up while its page is made does not cancel the page of others."""

    async def leave() -> bytes:
        exposition = Exposition(Scrape([Counting()]))
        first, second = (asyncio.create_task(exposition.page(ScrapeRequest())) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return (await second)[0]

    assert b"rankskew_counting_reads 1.0" in asyncio.run(leave())


def test_failure_to_render_reaches_everyone_and_lasts_for_nobody() -> None:
    """A page that cannot be made is an error for the waiting requests, and is tried again."""

    class Broken(Scrape):
        def names(self) -> list[str]:
            return []

        def collect(self, *_: object) -> Iterable[Metric]:  # type: ignore[override] # broken on purpose
            raise RuntimeError("a bug")

    async def ask() -> list[object]:
        exposition = Exposition(Broken())
        answers: list[object] = []
        for _ in range(2):
            pages = (exposition.page(ScrapeRequest()) for _ in range(2))
            answers += await asyncio.gather(*pages, return_exceptions=True)
        return answers

    assert [str(error) for error in asyncio.run(ask())] == ["a bug"] * 4


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("10", 9.5), ("2.5", 2.0), ("0.5", 0.25), *((odd, None) for odd in ("", "ten", "nan", "-1"))],
)
def test_page_is_due_before_the_scraper_gives_up(header: str, seconds: float | None) -> None:
    """Half a second of the timeout is left for the way, or half of a short one."""
    assert wanted([], {"x-prometheus-scrape-timeout-seconds": header}).seconds == seconds


def test_unknown_collector_is_said() -> None:
    exposition = Exposition(Scrape([Counting("one")]))

    assert exposition.unknown(ScrapeRequest(frozenset({"one"}))) is None
    assert exposition.unknown(ScrapeRequest(frozenset({"two", "one"}))) == (
        "No collector is called 'two'; enabled collectors: one."
    )


def test_collector_whose_turn_comes_too_late_is_left_out() -> None:
    """A slow reading costs the collectors after it, not the whole page."""
    seconds = [1_000.0]

    def take_three_seconds() -> None:
        seconds[0] += 3

    slow, late = Counting("slow", take_three_seconds), Counting("late")
    exposition = Exposition(Scrape([slow, late], monotonic=lambda: seconds[0]))
    hurried, patient = asyncio.run(
        together(exposition, [ScrapeRequest(seconds=2.5), ScrapeRequest(seconds=9.5)])
    )

    assert b"rankskew_slow_reads 1.0" in hurried
    assert b"rankskew_late" not in hurried
    assert b'rankskew_collector_success{collector="late"} 0.0' in hurried
    assert b"rankskew_late_reads 1.0" in patient
    assert b'collector="late"' not in patient
