"""What is printed has every figure and ends with what stands out; Prometheus reads the series."""

import json
import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rank_probe.collectives.report import (
    BANDWIDTHS,
    BYTES,
    SECONDS,
    Units,
    as_json,
    as_prometheus,
    as_text,
    shown,
    write_textfile,
)
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

HEALTHY = result(pair_times(hosts(2, 2)), hosts(2, 2))
SLOW = result(pair_times(hosts(1, 4), {(1, 3): 4.0}), hosts(1, 4))
SLOW_OF_TWO = result(pair_times(hosts(2, 4), {(1, 3): 4.0}), hosts(2, 4))


def test_tables_have_every_figure() -> None:
    """4 KiB in 1 ms over four ranks: the bus carries one and a half times as much.

    Pairs inside and between nodes have medians of their own.
    """
    lines = as_text(HEALTHY).splitlines()

    assert lines[0] == "4 ranks on 2 nodes, gloo, messages of 1 MiB"
    assert "all_reduce  4 KiB  1 ms    6.14 MB/s" in lines
    assert lines[7:9] == [
        "median of 2  20 µs    10 GB/s  10 GB/s  intra-node",
        "median of 4  200 µs   1 GB/s   1 GB/s   inter-node",
    ]
    assert "0 and 1      20 µs    10 GB/s  10 GB/s  intra-node" in lines
    assert lines[-1] == "ok: no link stands out"


def test_slow_link_is_the_last_line() -> None:
    """Who reads one line reads the verdict."""
    assert as_text(SLOW).splitlines()[-1] == (
        "slow: the link between ranks 1 and 3 (n0) is slow inside nodes: "
        "bandwidth from 1 to 3 2.5 GB/s against 10 GB/s (4.0 times)"
    )


def test_what_cannot_be_told_is_said() -> None:
    """One link alone is neither slow nor fast; the pairs of 64 ranks are too many to read."""
    alone = as_text(result(pair_times(hosts(1, 2)), hosts(1, 2)))
    many = as_text(result(pair_times(hosts(8, 8)), hosts(8, 8)))

    assert alone.endswith("two ranks have one link, and nothing to compare it with")
    assert "all of them: see --json" in many


def test_json_has_what_the_tables_say() -> None:
    """Scripts get base units."""
    said = json.loads(as_json(SLOW))

    assert (said["slow"], said["ranks"], said["message_bytes"]) == (True, 4, 2**20)
    assert said["named"][0]["kind"] == "link"
    assert said["named"][0]["ranks"] == [1, 3]
    assert said["named"][0]["slow"][0]["value"] == 2.5e9
    assert said["collectives"][0]["bus_bandwidth"] == 4096 / 1e-3 * 1.5
    assert {pair["scope"] for pair in said["pairs"]} == {"intra-node"}


@pytest.mark.parametrize(
    ("units", "values", "texts"),
    [
        (BYTES, (64, 4096, 2**28), "64 B, 4 KiB, 256 MiB"),
        (SECONDS, (2.5, 0.0123, 45.6e-6, 5e-8, 0.99996), "2.5 s, 12.3 ms, 45.6 µs, 50 ns, 1 s"),
        (BANDWIDTHS, (2.5e11, 1.5e6, 12e3, 3), "250 GB/s, 1.5 MB/s, 12 kB/s, 3 B/s"),
    ],
)
def test_values_are_shown_with_a_fitting_unit(
    units: Units, values: tuple[float, ...], texts: str
) -> None:
    """Three digits; sizes are binary, bandwidths decimal."""
    assert ", ".join(shown(value, units) for value in values) == texts


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return values by name and by the values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_each_figure_is_a_series() -> None:
    """Bus bandwidths, what is slow, and when this was measured; what is healthy has none, no 0."""
    found = samples(as_prometheus(SLOW_OF_TWO, 1000.0))

    assert found["rankskew_collective_bus_bandwidth_bytes_per_second"] == {
        ("all_reduce", "4096"): pytest.approx(4096 / 1e-3 * 2 * 7 / 8),
        ("all_gather", "4096"): pytest.approx(4096 / 0.5e-3 * 7 / 8),
    }
    assert found["rankskew_collective_measured_timestamp_seconds"] == {("gloo", "8"): 1000.0}
    assert found["rankskew_collective_slow_info"] == {("link", "1,3", "n0", "intra-node"): 1.0}
    assert "rankskew_collective_slow_info" not in samples(as_prometheus(HEALTHY, 1000.0))


def test_file_is_replaced_at_once(tmp_path: Path) -> None:
    """node_exporter, another user, never reads half of it."""
    path = tmp_path / "links.prom"
    path.write_text("old")
    write_textfile(path, SLOW_OF_TWO)

    assert samples(path.read_text())["rankskew_collective_slow_info"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["links.prom"]
