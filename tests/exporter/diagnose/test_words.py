"""Figures in their units, and times as people say them."""

import pytest

from exporter.diagnose.figures import UNITS
from exporter.diagnose.model import Figure, Finding
from exporter.diagnose.words import amount, measured, rows


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.1053, "seconds", "105 ms"),
        (2.5, "seconds", "2.5 s"),
        (0.7, "share", "70%"),
        (0.021, "share", "2.1%"),
        (0.0, "share", "0%"),
        (1.41e9, "hertz", "1.41 GHz"),
        (240e6, "bytes_per_second", "240 MB/s"),
        (40.0, "per_second", "40 a second"),
        (87.0, "celsius", "87 °C"),
        (5300.4, "count", "5,300"),
        (2.0, "count", "2"),
    ],
)
def test_amount_is_in_its_unit(value: float, unit: str, said: str) -> None:
    """Three digits are enough."""
    assert unit in UNITS
    assert amount(value, unit) == said


def test_figure_without_peers_stands_alone() -> None:
    """No reading of the peers is not 0."""
    assert measured(Figure("GC", "share", 0.2)) == "GC: 20%"
    assert measured(Figure("GC", "share", 0.2, 0.0)) == "GC: 20%; its peers: 0%"


def test_incident_that_is_over_has_an_end() -> None:
    """At a time of day, or in a trace that has none."""
    over = Finding("gc", "It was.", since_seconds=600.0, until_seconds=300.0)

    assert dict(rows(over, 1_795_420_800.0))["Since"].endswith(" UTC) until 5 min ago")
    assert dict(rows(over, None))["Since"] == "10 min before the end until 5 min before it"
