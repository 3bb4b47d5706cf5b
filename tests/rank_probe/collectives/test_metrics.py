"""The textfile has series that Prometheus reads."""

import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rank_probe.collectives.report import as_prometheus, write_textfile
from tests.rank_probe.collectives.worlds import hosts, pair_times, result

SLOW = result(pair_times(hosts(2, 4), {(1, 3): 4.0}), hosts(2, 4))


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return values by name and by the values of labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_each_figure_is_a_series() -> None:
    """Bus bandwidths, what is slow, and when this was measured."""
    found = samples(as_prometheus(SLOW, 1000.0))

    assert found["rankskew_collective_bus_bandwidth_bytes_per_second"] == {
        ("all_reduce", "4096"): pytest.approx(4096 / 1e-3 * 2 * 7 / 8),
        ("all_gather", "4096"): pytest.approx(4096 / 0.5e-3 * 7 / 8),
    }
    assert found["rankskew_collective_measured_timestamp_seconds"] == {("gloo", "8"): 1000.0}
    assert found["rankskew_collective_slow_info"] == {("link", "1,3", "n0", "intra-node"): 1.0}


def test_healthy_world_has_no_slow_series() -> None:
    """Nothing stands out, so there is no series, and no 0."""
    healthy = result(pair_times(hosts(1, 4)), hosts(1, 4))

    assert "rankskew_collective_slow_info" not in samples(as_prometheus(healthy, 1000.0))


def test_file_is_replaced_at_once(tmp_path: Path) -> None:
    """node_exporter, another user, never reads half of it."""
    path = tmp_path / "links.prom"
    path.write_text("old")
    write_textfile(path, SLOW)

    assert samples(path.read_text())["rankskew_collective_slow_info"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["links.prom"]
