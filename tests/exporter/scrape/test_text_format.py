"""Our encoder writes, byte for byte, what prometheus_client's would."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    UnknownMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_format
from prometheus_client.registry import Collector

from exporter.scrape.text_format import encode

Make = Callable[..., Metric]


class Page(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def assert_same(*families: Metric) -> None:
    page = Page(list(families))

    assert encode(families, openmetrics=False) == generate_latest(page)
    reference: bytes = openmetrics_format.generate_latest(page)  # type: ignore[no-untyped-call] # upstream
    assert encode(families, openmetrics=True) == reference


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats() | st.integers(-(2**60), 2**60)),
    label=st.text(),
    help_text=st.text(),
    make=st.sampled_from([CounterMetricFamily, GaugeMetricFamily]),
)
def test_any_value_and_any_text(
    values: list[float], label: str, help_text: str, make: Make
) -> None:
    """Numbers of every size, and every character in a label value or a help text."""
    family = make("rankskew_reading_total", help_text, labels=["zone", "gpu"])
    for value in values:
        family.add_metric([label, "0"], value)  # type: ignore[attr-defined] # both families have it

    assert_same(family)


def test_every_character_that_is_escaped() -> None:
    """A quote, a backslash or a line end in a text does not end it."""
    family = GaugeMetricFamily("rankskew_reading", 'A "b" \\ c\nd', labels=["zone"])
    family.add_metric(['a "b" \\ c\nd'], 1)

    assert_same(family)


@pytest.mark.parametrize("number", [999_999.0, 999_999.99, 1e6, 1e15, 1e21, -1e7, 1e-9, True])
def test_numbers_at_the_bounds_between_forms(number: float) -> None:
    """Go changes to exponents earlier than Python does."""
    assert_same(GaugeMetricFamily("rankskew_reading", "A reading.", value=number))


def test_empty_page_and_family_without_series() -> None:
    """A family keeps its head when no series is left of it."""
    assert_same()
    assert_same(GaugeMetricFamily("rankskew_reading", "A reading.", labels=["gpu"]))


def test_what_is_neither_plain_counter_nor_gauge() -> None:
    """A collector may yield any family there is, with units, timestamps or creation times."""
    stamped = GaugeMetricFamily("rankskew_stamped", "Stamped.")
    stamped.add_metric([], 1, timestamp=1.5)
    histogram = HistogramMetricFamily("rankskew_seconds", "Times.")
    histogram.add_metric([], [("1.0", 2.0), ("+Inf", 3.0)], sum_value=4.0)

    assert_same(
        GaugeMetricFamily("rankskew_plain", "Plain.", value=1),
        CounterMetricFamily("rankskew_made", "Made.", value=1, created=123.0),
        GaugeMetricFamily("rankskew_size_bytes", "Sized.", value=1, unit="bytes"),
        stamped,
        histogram,
        InfoMetricFamily("rankskew_build", "Build.", value={"version": "1"}),
        UnknownMetricFamily("rankskew_odd", "Odd.", value=1),
    )
