"""A report as text and Markdown says the same, and nothing in it can break it."""

from rankskew.report.document import Document, Section, as_markdown

EVIL = '</title><script>alert("x")</script>|`*_[a](b)'
NAMES = ("Rank", ">GPU-hours", ">US$")
# Nothing has a price, so the column of it says nothing.
ROWS = [["3", "12.50", "–"], ["sum", "100.25", "–"]]
SMALL = Document("Job a", ["It ran."], [Section("Lost", ["Nothing else."], NAMES, ROWS)])


def test_markdown_shows_names_as_they_are() -> None:
    """A name of a job is no markup and no column."""
    text = as_markdown(Document(EVIL, [], [Section("t", [], ["a"], [[EVIL]])]))

    assert "\\<script\\>" in text
    assert text.splitlines()[-1].count("|") - text.splitlines()[-1].count("\\|") == 2
