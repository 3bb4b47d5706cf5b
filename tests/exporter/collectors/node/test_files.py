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


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    """A node without the file, the folder or NUMA is a normal node."""
    assert text_of(tmp_path / "missing") is None
    assert number_in(tmp_path / "missing") is None
    assert names_in(tmp_path / "missing") == []
    assert numa_nodes(tmp_path) == {}


def test_file_that_cannot_be_read_is_nothing(tmp_path: Path) -> None:
    """A driver may refuse a file that it lists; a folder stands in for it."""
    assert text_of(tmp_path) is None
    assert names_in(Path(__file__)) == []


@pytest.mark.parametrize("text", ["N/A (no PMA)", "", "-1", "1 2", "0x10"])
def test_what_is_not_a_count_is_no_number(text: str, tmp_path: Path) -> None:
    """Drivers write words where a counter is missing."""
    (tmp_path / "counter").write_text(f"{text}\n")

    assert number_in(tmp_path / "counter") is None


def test_number_is_read_without_its_newline(tmp_path: Path) -> None:
    """Counters of 64 bits stay exact."""
    (tmp_path / "counter").write_text("18446744073709551615\n")

    assert number_in(tmp_path / "counter") == 2**64 - 1


def test_sizes_are_bytes_and_counts_are_left_out() -> None:
    """The node's file and a NUMA node's differ in how a line begins."""
    assert bytes_by_name("MemTotal:  2 kB\nHugePages_Total:  7\n") == {"MemTotal": 2048}
    assert bytes_by_name("Node 0 Active(file):  1 kB\n") == {"Active(file)": 1024}
