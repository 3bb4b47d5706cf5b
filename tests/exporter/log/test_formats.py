"""A record is one line that a program can read, with all that the code knew."""

import json
import logging
import sys
from typing import Any

from exporter.log.formats import FORMATS


def record(message: str, *arguments: object, **given: Any) -> logging.LogRecord:
    """Return what logger.warning() would make of these, at 2026-11-23T08:04:30.5 UTC."""
    made = logging.getLogger("exporter.web").makeRecord(
        "exporter.web", logging.WARNING, "file.py", 7, message, arguments, **given
    )
    made.created = 1795421070.5
    return made


def failure() -> Any:
    try:
        raise ValueError("no")
    except ValueError:
        return sys.exc_info()


def test_json_has_time_level_message_logger_and_fields() -> None:
    """One object per line, whatever is in the message."""
    line = FORMATS["json"]().format(
        record('job "%s"\nis ×', "a", exc_info=None, extra={"job_id": "a", "ranks": 3})
    )

    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2026-11-23T08:04:30.500Z",
        "level": "warning",
        "message": 'job "a"\nis ×',
        "logger": "exporter.web",
        "job_id": "a",
        "ranks": 3,
    }


def test_traceback_is_one_field() -> None:
    """The lines of an exception stay together."""
    said = json.loads(FORMATS["json"]().format(record("it failed", exc_info=failure())))

    assert said["message"] == "it failed"
    assert said["traceback"].startswith("Traceback (most recent call last):\n")
    assert said["traceback"].endswith("\nValueError: no")


def test_field_that_json_lacks_is_text() -> None:
    """No record is lost because of what it carries."""
    line = FORMATS["json"]().format(record("m", exc_info=None, extra={"path": logging}))

    assert "module 'logging'" in json.loads(line)["path"]


def test_logfmt_quotes_what_needs_it() -> None:
    """As Prometheus itself logs."""
    line = FORMATS["logfmt"]().format(
        record('a "b"\nc', exc_info=None, extra={"job_id": "x=1", "ranks": 3, "none": ""})
    )

    assert line == (
        'time=2026-11-23T08:04:30.500Z level=warning message="a \\"b\\"\\nc" '
        'logger=exporter.web job_id="x=1" ranks=3 none=""'
    )


def test_text_is_what_it_was() -> None:
    """The default format has not changed."""
    line = FORMATS["text"]().format(record("a %s", "b", exc_info=None))

    assert line.endswith(" WARNING a b")
