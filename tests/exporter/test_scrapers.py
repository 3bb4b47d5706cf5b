"""The exporter remembers its last scrapers, and no more of them than it has room for."""

from exporter.scrapers import AGENT_CHARACTERS, MOST_REMEMBERED, Scraper, Scrapers
from tests.exporter.clock import Clock


def test_latest_scraper_comes_first() -> None:
    """Each address is remembered once, with its last fetch and how long ago that was."""
    clock = Clock()
    scrapers = Scrapers(clock)
    for address in ("10.0.0.1", "10.0.0.2", "::ffff:10.0.0.1"):
        scrapers.see(address, "Prometheus/2.53.0")
        clock.seconds += 15.0

    assert scrapers.latest() == [
        Scraper("10.0.0.1", "Prometheus/2.53.0", 15.0),
        Scraper("10.0.0.2", "Prometheus/2.53.0", 30.0),
    ]


def test_flood_of_addresses_costs_no_memory() -> None:
    """Only the latest few addresses stay."""
    scrapers = Scrapers(Clock())
    for number in range(10 * MOST_REMEMBERED):
        scrapers.see(f"fd00::{number}", "")

    kept = [scraper.address for scraper in scrapers.latest()]
    assert kept == [
        f"fd00::{number}" for number in range(10 * MOST_REMEMBERED - 1, 9 * MOST_REMEMBERED - 1, -1)
    ]


def test_name_of_a_client_is_cut_and_printable() -> None:
    """A client may call itself anything; what is shown fits a line of a terminal."""
    scrapers = Scrapers(Clock())
    scrapers.see("10.0.0.1", "\x1b[2J" + "x" * 10_000)

    (scraper,) = scrapers.latest()
    assert scraper.agent == "?[2J" + "x" * (AGENT_CHARACTERS - 4)
