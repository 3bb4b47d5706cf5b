"""What the node's files say is found in them."""

from pathlib import Path

from exporter.collectors.node.files import bytes_by_name, numa_nodes


def test_node_without_numa_has_no_nodes(tmp_path: Path) -> None:
    """A node without NUMA is a normal node."""
    assert numa_nodes(tmp_path) == {}


def test_sizes_are_bytes_and_counts_are_left_out() -> None:
    """The node's file and a NUMA node's differ in how a line begins."""
    assert bytes_by_name("MemTotal:  2 kB\nHugePages_Total:  7\n") == {"MemTotal": 2048}
    assert bytes_by_name("Node 0 Active(file):  1 kB\n") == {"Active(file)": 1024}
