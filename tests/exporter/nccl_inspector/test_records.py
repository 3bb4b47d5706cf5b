"""Tests of reading NCCL Inspector's lines."""

import json

import pytest

from exporter.nccl_inspector.records import Record, parse
from tests.exporter.nccl_inspector.lines import SAMPLE, line


def test_published_sample_is_read() -> None:
    """Times in seconds, bandwidth in bytes per second."""
    record = parse(json.dumps(SAMPLE).encode())

    assert record == Record("example-hostname", 1639453, "all_reduce", 0.061974, 485.119099e9)


def test_figures_of_the_sample_are_in_the_convention_of_nccl_tests() -> None:
    """Bytes over seconds, times 2 (n - 1) / n for an all-reduce: that is what we say it is."""
    moved = SAMPLE["coll_perf"]["coll_msg_size_bytes"]
    record = parse(json.dumps(SAMPLE).encode())

    assert record is not None
    assert record.bytes_per_second == pytest.approx(moved / record.seconds * 2 * 7 / 8, rel=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        json.dumps(SAMPLE)[:-9],
        json.dumps({"header": {}, "metadata": SAMPLE["metadata"], "p2p_perf": {"p2p": "Send"}}),
        line(coll="AllToAllvW"),
        line(coll=["AllReduce"]),
        line(coll_exec_time_us=0),
        line(coll_exec_time_us="soon"),
        line(coll_busbw_gbs=float("nan")),
        line(coll_busbw_gbs=-1),
        line(coll_busbw_gbs=1e300),
    ],
)
def test_line_that_says_nothing_is_passed_over(text: str) -> None:
    """Half a line, another kind of event, figures that are none."""
    assert parse(text.encode()) is None
