"""Every flag parses what it documents, and its shown default is what it takes."""

import pytest

from exporter.settings import (
    duration_seconds,
    duration_text,
    file_mode,
    flags,
    positive,
    regular_expression,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300.0), ("1h30m", 5_400.0), ("500ms", 0.5), ("2d", 172_800.0), ("0s", 0.0)],
)
def test_duration_is_read_as_prometheus_reads_it(text: str, seconds: float) -> None:
    """A duration is a sum of numbers with units."""
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5m!", "1.5h", "5x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A number without a unit is not guessed at."""
    with pytest.raises(ValueError, match="is not a duration such as 5m"):
        duration_seconds(text)


@pytest.mark.parametrize("text", ["5m", "1h", "500ms", "90s", "1s"])
def test_duration_is_shown_as_it_is_given(text: str) -> None:
    """The documented default can be pasted back as a flag."""
    assert duration_text(duration_seconds(text)) == text


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
