"""Figures are written as people write them, by the unit at the end of their name."""

import pytest

from exporter.causes.units import COUNT, UNITS, pair, text, unit_of
from rank_probe.wire.figures import FIGURES


@pytest.mark.parametrize(
    ("figure", "value", "written"),
    [
        ("sm_clock_hertz", 1.41e9, "1.41 GHz"),
        ("gpu_temperature_celsius", 87.4, "87 °C"),
        ("gpu_power_watts", 430.0, "430 W"),
        ("main_run_queue_ratio", 0.344, "34 %"),
        ("main_run_queue_ratio", 0.0214, "2.1 %"),
        ("main_run_queue_ratio", 0.0, "0 %"),
        ("read_bytes_per_second", 240e6, "240 MB/s"),
        ("read_bytes_per_second", 0.0, "0 MB/s"),
        ("node_network_link_bytes_per_second", 12.5e9, "12.5 GB/s"),
        ("major_faults_per_second", 1234.0, "1,234 a second"),
        ("data_seconds", 0.21, "210 ms"),
        ("data_seconds", 1.5, "1.5 s"),
        ("node_disk_read_seconds", 0.0004, "400 µs"),
        ("node_disk_read_seconds", 0.0, "0 µs"),
        ("tokens_per_step", 8192.0, "8,192"),
        ("nvlink_links_up", 9.0, "9"),
    ],
)
def test_figure_is_written_in_its_unit(figure: str, value: float, written: str) -> None:
    """GHz, °C, %, MB/s, milliseconds; nobody reads 1410000000.0."""
    assert text(figure, value) == written


@pytest.mark.parametrize(
    ("figure", "own", "peers", "written"),
    [
        ("sm_clock_hertz", 1.41e9, 1.95e9, ("1.41 GHz", "1.95")),
        ("main_run_queue_ratio", 0.34, 0.02, ("34 %", "2 %")),
        ("read_bytes_per_second", 2.4e9, 3e6, ("2.4 GB/s", "0.003")),
        ("node_mount_operation_seconds", 0.05, 0.0008, ("50 ms", "0.8")),
    ],
)
def test_peers_are_on_the_same_scale(
    figure: str, own: float, peers: float, written: tuple[str, str]
) -> None:
    """The unit is said once, except for percent."""
    assert pair(figure, own, peers) == written


def test_every_figure_has_a_unit_or_counts() -> None:
    """A new figure in another unit would be shown as a bare number."""
    counts = {figure for figure in FIGURES if unit_of(figure) == COUNT}

    assert {unit_of(figure) for figure in FIGURES} == {*UNITS, COUNT}
    assert counts == {
        "gpu_foreign_processes",
        "gpu_memory_faults",
        "nvlink_links_up",
        "saturated_workers",
        "tokens_per_step",
        "samples_per_step",
        "node_steal_cpus",
    }
