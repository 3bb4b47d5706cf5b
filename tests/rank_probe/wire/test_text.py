"""Tests of text that others chose."""

import pytest

from rank_probe.wire.text import printable


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("nginx/1.25 (Köln)", None, "nginx/1.25 (Köln)"),
        ("\x1b[2J\nred\u202e", None, "?[2J?red?"),
        ("abc\n", 3, "abc"),
        ("\n" * 3, 2, "??"),
    ],
)
def test_nothing_moves_a_cursor_and_nothing_is_long(
    text: str, most: int | None, shown: str
) -> None:
    """Letters of any language stay."""
    assert printable(text, most) == shown
