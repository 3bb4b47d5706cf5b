"""Times, spans, amounts and reports, as people give and read them."""

from datetime import UTC, datetime

import pytest

from rankskew.render import Document, Section, render
from rankskew.times import merged, moment, seconds
from rankskew.wording import gpu_hours, money

NOW = datetime(2026, 3, 4, 15, 0, tzinfo=UTC).timestamp()
EVIL = '</title><script>alert("x")</script>|`*_[a](b)'


@pytest.mark.parametrize(
    ("text", "seconds_ago"),
    [
        *(
            (form, 3300)
            for form in ("14:05", "14:05:00", "2026-03-04T14:05", "2026-03-04 14:05:00")
        ),
        *((form, 3300) for form in ("-55m", f"{NOW - 3300:.0f}", "2026-03-04T15:05+01:00")),
        # A clock time that is still to come was yesterday's.
        ("15:30", 86_400 - 1800),
        ("now", 0),
    ],
)
def test_times_are_read_in_each_form(text: str, seconds_ago: float) -> None:
    assert moment(text, NOW) == NOW - seconds_ago


def test_spans_are_joined_and_added_up() -> None:
    """In any order; a gap that is too long keeps two apart."""
    assert merged([(10, 20), (0, 5), (5, 8), (15, 30)]) == [(0, 8), (10, 30)]
    assert merged([(0, 5), (8, 9), (20, 21)], gap_seconds=3) == [(0, 9), (20, 21)]
    assert seconds([(0, 45), (90, 105)]) == 60


def test_amounts() -> None:
    """What is not known is not 0, and what is little is not nothing."""
    hours = [gpu_hours(each) for each in (None, 0, 0.001, 1.234, 1234.5)]
    dollars = [money(each) for each in (None, 0, 0.001, 1.5, 12345)]

    assert hours == ["–", "0.00", "<0.01", "1.23", "1,234"]
    assert dollars == ["–", "$0.00", "<$0.01", "$1.50", "$12,345"]


def test_markdown_shows_names_as_they_are() -> None:
    """A name of a job is no markup and no column."""
    document = Document(EVIL, [], [Section("t", [], ["a"], [[EVIL]])])
    text = render(document, markdown=True)

    assert "\\<script\\>" in text
    assert text.splitlines()[-1].count("|") - text.splitlines()[-1].count("\\|") == 2
