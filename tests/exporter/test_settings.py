"""Every flag parses what it documents, and its shown default is what it takes."""

import pytest

from exporter.settings import (
    file_mode,
    flags,
    positive,
    regular_expression,
)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "²"])
def test_limit_below_one_is_refused(text: str) -> None:
    """A limit is a whole number of at least 1."""
    with pytest.raises(ValueError, match="whole number of at least 1"):
        positive(text)


@pytest.mark.parametrize("text", ["9", "0o660", "888", "rw", "07777"])
def test_file_mode_is_octal(text: str) -> None:
    """A file mode is three octal digits, with or without a leading 0."""
    assert file_mode("0660") == file_mode("660") == 0o660
    with pytest.raises(ValueError, match="not an octal file mode"):
        file_mode(text)


def test_broken_regular_expression_is_refused() -> None:
    """A device filter that cannot compile is found at the start."""
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression"):
        regular_expression("(")


def test_every_default_is_what_its_flag_would_parse() -> None:
    """What the documentation shows as default gives the default when it is passed."""
    for setting, flag in flags():
        assert flag.parse(flag.show(setting.default)) == setting.default, flag.name


def test_every_flag_has_a_sentence_of_help() -> None:
    """What --help and the documentation show is a sentence."""
    assert all(flag.help.endswith(".") for _, flag in flags())
