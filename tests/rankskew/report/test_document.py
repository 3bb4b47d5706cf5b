"""A report as text and Markdown says the same, and nothing in it can break it."""

from rankskew.report.document import Document, Section, as_markdown, as_text

EVIL = '</title><script>alert("x")</script>|`*_[a](b)'
NAMES = ("Rank", ">GPU-hours", ">US$")
# Nothing has a price, so the column of it says nothing.
ROWS = [["3", "12.50", "–"], ["sum", "100.25", "–"]]
SMALL = Document("Job a", ["It ran."], [Section("Lost", ["Nothing else."], NAMES, ROWS)])


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
    text = as_markdown(Document(EVIL, [], [Section("t", [], ["a"], [[EVIL]])]))

    assert "\\<script\\>" in text
    assert text.splitlines()[-1].count("|") - text.splitlines()[-1].count("\\|") == 2
