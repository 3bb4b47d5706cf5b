"""Small files of /proc and /sys are read, or said to be unreadable, and never raise."""

from pathlib import Path

import pytest

from exporter.collectors.node.files import (
    bytes_by_name,
    names_in,
    numa_nodes,
    number_in,
    text_of,
)


def test_what_is_not_there_or_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    """A node without NUMA is a normal node; a driver may refuse a file that it lists."""
    assert text_of(tmp_path / "missing") is text_of(tmp_path) is None
    assert number_in(tmp_path / "missing") is None
    assert names_in(tmp_path / "missing") == names_in(Path(__file__)) == []
    assert numa_nodes(tmp_path) == {}


# Drivers write words where a counter is missing; counters of 64 bits stay exact.
@pytest.mark.parametrize(
    ("text", "number"),
    [
        *((text, None) for text in ("N/A (no PMA)", "", "-1", "1 2", "0x10")),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_count_is_a_number_and_nothing_else_is(
    text: str, number: int | None, tmp_path: Path
) -> None:
    (tmp_path / "counter").write_text(f"{text}\n")

    assert number_in(tmp_path / "counter") == number


def test_sizes_are_bytes_and_counts_are_left_out() -> None:
    """The node's file and a NUMA node's differ in how a line begins."""
    assert bytes_by_name("MemTotal:  2 kB\nHugePages_Total:  7\n") == {"MemTotal": 2048}
    assert bytes_by_name("Node 0 Active(file):  1 kB\n") == {"Active(file)": 1024}
