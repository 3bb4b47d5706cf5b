"""Every flag parses what it documents, and its shown default is what it takes."""

from collections.abc import Callable
from typing import Any

import pytest

from exporter import durations
from exporter.settings import file_mode, flags, positive, regular_expression, web_address


@pytest.mark.parametrize(
    ("parse", "texts", "complaint"),
    [
        (positive, ["0", "-1", "1.5", "x", "", "²"], "whole number of at least 1"),
        (file_mode, ["9", "0o660", "888", "rw", "07777"], "not an octal file mode"),
        (regular_expression, ["("], r"'\(' is not a regular expression"),
        (web_address, ["grafana", "ftp://a", 'http://a"b'], "is not a URL such as"),
        # A number without a unit is not guessed at.
        (
            durations.parse,
            ["", "5", "m", "5 m", "-5m", "5m!", "1.5h", "5x"],
            "is not a duration such as 5m",
        ),
    ],
)
def test_what_is_no_value_is_refused(
    parse: Callable[[str], Any], texts: list[str], complaint: str
) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=complaint):
            parse(text)


def test_file_mode_is_octal() -> None:
    assert file_mode("0660") == file_mode("660") == 0o660


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300.0),
        ("1h30m", 5_400.0),
        ("500ms", 0.5),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("0s", 0.0),
    ],
)
def test_duration_is_read_as_prometheus_reads_it(text: str, seconds: float) -> None:
    assert durations.parse(text) == seconds


@pytest.mark.parametrize("text", ["5m", "1h", "500ms", "90s", "1s"])
def test_duration_is_shown_as_it_is_given(text: str) -> None:
    """The documented default can be pasted back as a flag."""
    assert durations.show(durations.parse(text)) == text


def test_every_flag_takes_its_default_and_has_a_sentence_of_help() -> None:
    """What the documentation shows as default gives the default when it is passed."""
    for setting, flag in flags():
        assert flag.parse(flag.show(setting.default)) == setting.default, flag.name
        assert flag.help.endswith("."), flag.name
