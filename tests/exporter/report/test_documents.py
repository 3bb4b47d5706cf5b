"""A report as text, Markdown and HTML says the same, and nothing in it can break it."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from exporter.report.as_html import as_html
from exporter.report.as_text import as_markdown, as_text
from exporter.report.document import Document, Section, Table, columns
from exporter.report.pictures import bars_picture

EVIL = '</title><script>alert("x")</script>|`*_[a](b)'
TABLE = Table(columns("Rank", ">GPU-hours"), [["3", "12.50"], ["sum", "100.25"]], has_sum=True)
SMALL = Document("Job a", ["It ran."], [Section("Lost", ["Nothing else."], TABLE)])


def test_text_is_aligned() -> None:
    """Numbers are below each other."""
    assert as_text(SMALL) == "\n".join(
        [
            "Job a",
            "It ran.",
            "",
            "Lost",
            "  Nothing else.",
            "  Rank  GPU-hours",
            "  3         12.50",
            "  sum      100.25",
        ]
    )


def test_markdown_has_tables() -> None:
    """With numbers to the right."""
    assert as_markdown(SMALL).splitlines()[-4:] == [
        "| Rank | GPU-hours |",
        "| --- | ---: |",
        "| 3 | 12.50 |",
        "| sum | 100.25 |",
    ]


def test_markdown_shows_names_as_they_are() -> None:
    """A name of a job is no markup and no column."""
    text = as_markdown(Document(EVIL, [], [Section("t", [], Table(columns("a"), [[EVIL]]))]))

    assert "\\<script\\>" in text
    assert text.splitlines()[-1].count("|") - text.splitlines()[-1].count("\\|") == 2


class Seen(HTMLParser):
    """Keeps the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.text += " ".join(value or "" for _, value in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_is_one_file_without_scripts() -> None:
    """Nothing is fetched, and what comes from a job stays text."""
    picture = bars_picture(EVIL, {EVIL: 1.0})
    page = as_html(
        Document(EVIL, [EVIL], [Section(EVIL, [EVIL], Table(columns(EVIL), [[EVIL]]), picture)])
    )
    seen = Seen(page)

    assert not {"script", "link", "img", "iframe", "a"} & set(seen.tags)
    assert "src=" not in page
    assert "url(" not in page
    assert seen.text.count(EVIL) >= 8


@pytest.mark.parametrize("parts", [{"a": 3.0, "b & c": 0.0}, {"a": 0.0}])
def test_bars_are_well_formed(parts: dict[str, float]) -> None:
    """One bar for each part, the longest for the most."""
    picture = bars_picture("Lost", parts)
    assert picture is not None
    bars = ET.fromstring(picture.svg).findall("{http://www.w3.org/2000/svg}rect")

    assert len(bars) == len(parts)
    assert float(bars[0].attrib["width"]) == max(float(bar.attrib["width"]) for bar in bars)
    assert picture.says.startswith("Lost: a")


def test_nothing_lost_is_no_picture() -> None:
    """An empty chart says nothing."""
    assert bars_picture("Lost", {}) is None
