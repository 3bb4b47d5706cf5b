"""What the NVML worker prints is in the log, a traceback as one record."""

import pytest

from exporter.log.child import records

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "worker.py", line 1, in <module>',
    "    main()",
    "ValueError: no",
]
CRASH = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1:", "  File ..."]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", "", "b"], [("a", ""), ("b", "")]),
        (["a", *TRACEBACK, "b"], [("a", ""), ("ValueError: no", "\n".join(TRACEBACK)), ("b", "")]),
        (TRACEBACK[:2], [(TRACEBACK[0], "\n".join(TRACEBACK[:2]))]),
        (CRASH, [("Fatal Python error: Segmentation fault", "\n".join(CRASH))]),
    ],
)
def test_lines_become_records(lines: list[str], expected: list[tuple[str, str]]) -> None:
    """A line is a record, and a traceback is one, even if it breaks off."""
    assert list(records(lines)) == expected


def test_line_is_not_held_back() -> None:
    """A record is there with its line, not only with the next one."""

    def lines() -> object:
        yield "first"
        raise AssertionError("asked for a second line")

    assert next(records(lines())) == ("first", "")  # type: ignore[arg-type] # never runs to its end
