"""What is printed has every figure, and ends with what stands out."""

import json

from rank_probe.collectives.report import as_json, as_text
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

HEALTHY = result(pair_times(hosts(2, 2)), hosts(2, 2))
SLOW = result(pair_times(hosts(1, 4), {(1, 3): 4.0}), hosts(1, 4))


def test_tables_have_every_figure_and_end_with_the_spread() -> None:
    """4 KiB in 1 ms over four ranks: the bus carries one and a half times as much.

    Pairs inside and between nodes have medians of their own.
    """
    lines = as_text(HEALTHY._replace(notes=("n0: no exporter",))).splitlines()

    assert lines[0] == "4 ranks on 2 nodes, gloo"
    assert "all_reduce  4 KiB  1.00 ms  900 µs to 1.20 ms  4.10 MB/s  6.14 MB/s  100 times" in lines
    assert "intra-node: 2 pairs, median latency 20.0 µs, median bandwidth 10.0 GB/s" in lines
    assert "inter-node: 4 pairs, median latency 200 µs, median bandwidth 1.00 GB/s" in lines
    assert lines[-2:] == [
        "note: n0: no exporter",
        "ok: no link stands out: of 2 pairs inside nodes the slowest has 1.0 times the median "
        "latency and 100% of the median bandwidth; of 4 pairs between nodes the slowest has 1.0 "
        "times the median latency and 100% of the median bandwidth",
    ]


def test_slow_link_is_the_last_line() -> None:
    """Who reads one line reads the verdict."""
    assert as_text(SLOW).splitlines()[-1] == (
        "slow: the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "bandwidth from 1 to 3 2.50 GB/s against 10.0 GB/s (4.0 times)"
    )


def test_what_cannot_be_told_is_said() -> None:
    """One link alone is neither slow nor fast; of 64 ranks not every pair is measured."""
    alone = as_text(result(pair_times(hosts(1, 2)), hosts(1, 2)))
    many = as_text(result(pair_times(hosts(8, 8)), hosts(8, 8)))

    assert alone.endswith("two ranks have one link, and nothing to compare it with")
    assert "measured 352 of 2016 pairs: a slow rank or node shows" in many
    assert "all pairs: see --json" in many


def test_json_has_what_the_tables_say() -> None:
    """Scripts get base units."""
    said = json.loads(as_json(SLOW._replace(notes=("n0: no exporter",))))

    assert (said["slow"], said["ranks"], said["possible_pairs"]) == (True, 4, 6)
    assert said["named"][0]["kind"] == "link"
    assert said["named"][0]["ranks"] == [1, 3]
    assert said["named"][0]["slow"][0]["value"] == 2.5e9
    assert said["collectives"][0]["bus_bandwidth"] == 4096 / 1e-3 * 1.5
    assert {pair["scope"] for pair in said["pairs"]} == {"intra-node"}
    assert said["notes"] == ["n0: no exporter"]
