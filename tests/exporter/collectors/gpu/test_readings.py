"""Each reading of a GPU is exposed in base units; a new one is a row of EXPOSED."""

import re
from typing import Any, Final

import pynvml
import pytest

from exporter.collectors.catalog import COLLECTORS
from exporter.collectors.gpu.collector import GpuReadingsCollector
from exporter.collectors.gpu.readings import READINGS
from exporter.nvml.sample import REASON_BITS, GpuSample
from tests.exporter.nvml.fixed import expose, node, series

# For each collector, in the order of its page: a reading, and what is exposed of it without
# "rankskew_gpu_" and the labels of the GPU. A 0 is a reading like any other.
EXPOSED: Final[dict[str, list[tuple[str, Any, list[str]]]]] = {
    "gpu_utilization": [
        ("gpu_busy_percent", 97.5, ["utilization_ratio 0.975"]),
        ("decoder_busy_percent", 7, ["decoder_utilization_ratio 0.07"]),
    ],
    "gpu_memory": [
        ("memory_total_bytes", 80, ["memory_total_bytes 80.0"]),
        ("memory_used_bytes", 30, ["memory_used_bytes 30.0"]),
    ],
    "gpu_activity": [
        ("sm_active_percent", 80.0, ["sm_active_ratio 0.8"]),
        ("sm_occupancy_percent", 50.0, ["sm_occupancy_ratio 0.5"]),
        ("tensor_active_percent", 0.0, ["tensor_active_ratio 0.0"]),
        ("dram_active_percent", 35.0, ["dram_active_ratio 0.35"]),
    ],
    "gpu_nvlink": [
        ("nvlink_transmit_bytes", 5, ["nvlink_transmit_bytes_total 5.0"]),
        ("nvlink_receive_bytes", 7, ["nvlink_receive_bytes_total 7.0"]),
        (
            "nvlink_errors",
            {"replay": 0, "crc": 42},
            ['nvlink_errors_total{type="replay"} 0.0', 'nvlink_errors_total{type="crc"} 42.0'],
        ),
        ("nvlink_link_errors", {"3": 42}, ['nvlink_link_errors_total{link="3"} 42.0']),
        ("nvlink_link_states", {"5": 0}, ['nvlink_link_up{link="5"} 0.0']),
        ("nvlink_links_up", 0, ["nvlink_links_up 0.0"]),
    ],
    "gpu_pcie": [
        ("pcie_transmit_bytes_per_second", 5000.0, ["pcie_transmit_bytes_per_second 5000.0"]),
        ("pcie_receive_bytes_per_second", 7000.0, ["pcie_receive_bytes_per_second 7000.0"]),
        ("pcie_link_generation", 4, ["pcie_link_generation 4.0"]),
        ("pcie_link_generation_max", 5, ["pcie_link_generation_max 5.0"]),
        ("pcie_link_width", 8, ["pcie_link_width 8.0"]),
        ("pcie_link_width_max", 16, ["pcie_link_width_max 16.0"]),
        ("pcie_replays", 0, ["pcie_replays_total 0.0"]),
        ("pcie_errors", 3, ["pcie_errors_total 3.0"]),
    ],
    "gpu_clocks": [
        ("sm_clock_megahertz", 1755, ['clock_hertz{clock="sm"} 1.755e+09']),
        ("memory_clock_megahertz", 2619, ['clock_hertz{clock="memory"} 2.619e+09']),
        ("sm_clock_max_megahertz", 1980, ['clock_max_hertz{clock="sm"} 1.98e+09']),
        ("memory_clock_max_megahertz", 2620, ['clock_max_hertz{clock="memory"} 2.62e+09']),
        ("performance_state", 0, ["performance_state 0.0"]),
    ],
    "gpu_throttle": [
        (
            # Idle (0x1) and a display's clock (0x100) hold up no training.
            "throttle_reasons",
            0x101 | REASON_BITS["sw_power_cap"] | REASON_BITS["hw_thermal_slowdown"],
            [
                'throttle_active{reason="sw_power_cap"} 1.0',
                'throttle_active{reason="hw_thermal_slowdown"} 1.0',
            ],
        ),
        (
            # A reason that is quiet has a 0 for an alert to read.
            "throttle_seconds",
            {"sw_power_cap": 1.5, "hw_slowdown": 0.0},
            [
                'throttle_seconds_total{reason="sw_power_cap"} 1.5',
                'throttle_seconds_total{reason="hw_slowdown"} 0.0',
            ],
        ),
    ],
    "gpu_power": [
        ("power_milliwatts", 650_500, ["power_watts 650.5"]),
        ("power_limit_milliwatts", 700_000, ["power_limit_watts 700.0"]),
        ("energy_millijoules", 2_500, ["energy_joules_total 2.5"]),
    ],
    "gpu_temperature": [
        ("gpu_temperature_celsius", 60, ['temperature_celsius{sensor="gpu"} 60.0']),
        ("memory_temperature_celsius", 72, ['temperature_celsius{sensor="memory"} 72.0']),
    ],
    "gpu_ecc": [
        (
            "ecc_corrected_errors",
            2**40,
            ['ecc_errors_total{type="corrected"} 1.099511627776e+12'],
        ),
        ("ecc_uncorrected_errors", 0, ['ecc_errors_total{type="uncorrected"} 0.0']),
    ],
    "gpu_remapped_rows": [
        ("remapped_rows_corrected", 3, ['remapped_rows_total{type="corrected"} 3.0']),
        ("remapped_rows_uncorrected", 1, ['remapped_rows_total{type="uncorrected"} 1.0']),
        ("row_remap_pending", 1, ["row_remap_pending 1.0"]),
        ("row_remap_failed", 0, ["row_remap_failed 0.0"]),
    ],
    "gpu_xid": [
        ("xid_events", 3, ["xid_events_total 3.0"]),
        (
            "xid_errors",
            {"31": 2, "79": 1},
            ['xid_errors_total{xid="31"} 2.0', 'xid_errors_total{xid="79"} 1.0'],
        ),
    ],
    # Nothing to do is a 0 that an alert can read.
    "gpu_recovery": [("recovery_action", 0, ["recovery_action 0.0"])],
}


def shown(name: str, *gpus: GpuSample) -> list[str]:
    """Return what the collector *name* exposes, as EXPOSED has it, of GPU 2, which is GPU-a."""
    lines = series(expose(GpuReadingsCollector(name, node(*gpus))))
    who = 'gpu="2",gpu_uuid="GPU-a"'
    assert all(line.startswith("rankskew_gpu_") and who in line for line in lines)
    short = (re.sub(rf",?{who},?", "", line.removeprefix("rankskew_gpu_")) for line in lines)
    return [line.replace("{}", "") for line in short]


@pytest.mark.parametrize("name", READINGS)
def test_readings_of_a_gpu_are_exposed_in_base_units_and_no_other_gpu_is(name: str) -> None:
    """One that is lost, or cannot tell, has no series, and the next has all of its own."""
    readings = {field: value for field, value, _ in EXPOSED[name]}
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(2, up=True, uuid="GPU-a", **readings)

    assert shown(name, silent, lost, fine) == [
        line for _, _, lines in EXPOSED[name] for line in lines
    ]


@pytest.mark.parametrize(
    ("name", "field", "value", "lines"),
    [(name, *row) for name, rows in EXPOSED.items() for row in rows],
)
def test_each_reading_has_series_of_its_own(
    name: str, field: str, value: Any, lines: list[str]
) -> None:
    """Whatever else a GPU lacks, what it has is shown, and nothing is 0 instead."""
    assert shown(name, GpuSample(2, up=True, uuid="GPU-a", **{field: value})) == lines


def test_every_metric_has_its_line_and_every_collector_its_switch() -> None:
    """A row of READINGS without one here, or that nobody can turn off, is not finished."""
    tested = {
        f"rankskew_gpu_{re.split('[ {]', line)[0]}"
        for rows in EXPOSED.values()
        for _, _, lines in rows
        for line in lines
    }

    assert tested == {row.name for rows in READINGS.values() for row in rows}
    assert set(READINGS) <= {entry.name for entry in COLLECTORS if entry.needs_nvml}


def test_gpu_without_an_xid_has_a_0_to_count_from() -> None:
    """increase() sees the first error, because the counter of all of them was there before it."""
    gpu = GpuSample(2, True, "GPU-a", xid_events=0, xid_errors={})

    assert shown("gpu_xid", gpu) == ["xid_events_total 0.0"]


def test_lost_gpu_still_says_why() -> None:
    """XID 79 is the last that is heard of a GPU, and stays on the page while it is down."""
    gpu = GpuSample(2, False, "GPU-a", xid_events=7, xid_errors={"79": 1})

    assert shown("gpu_xid", gpu) == ["xid_events_total 7.0", 'xid_errors_total{xid="79"} 1.0']


def test_help_explains_every_advice_of_the_driver() -> None:
    """Each action that NVML knows is in HELP, by its number."""
    known = {
        value for name, value in vars(pynvml).items() if name.startswith("NVML_GPU_RECOVERY_ACTION")
    }
    page = expose(GpuReadingsCollector("gpu_recovery", node()))
    (help,) = re.findall(r"^# HELP (.+)", page, re.MULTILINE)

    assert {int(number) for number in re.findall(r"[:,] (\d)", help)} == known
