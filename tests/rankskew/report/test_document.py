"""A report as text and Markdown says the same, and nothing in it can break it."""

from rankskew.render import Document, Section, render

EVIL = '</title><script>alert("x")</script>|`*_[a](b)'


def test_markdown_shows_names_as_they_are() -> None:
    """A name of a job is no markup and no column."""
    text = render(Document(EVIL, [], [Section("t", [], ["a"], [[EVIL]])]), markdown=True)

    assert "\\<script\\>" in text
    assert text.splitlines()[-1].count("|") - text.splitlines()[-1].count("\\|") == 2
