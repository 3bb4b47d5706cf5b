"""What a GPU tells becomes series in base units; what it does not tell is absent."""

import re
from typing import Any, Final

import pytest

from exporter.collectors.catalog import COLLECTORS
from exporter.collectors.gpu.collector import GpuReadingsCollector
from exporter.collectors.gpu.devices import GpuDevicesCollector
from exporter.collectors.gpu.mig import GpuMigCollector
from exporter.collectors.gpu.processes import GpuProcessesCollector
from exporter.collectors.gpu.readings import READINGS
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import (
    REASON_BITS,
    GpuProcess,
    GpuSample,
    MigDevice,
    NodeSample,
    NoGpuReason,
    NvmlSource,
    StuckCall,
)
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from tests.exporter.collectors.expose import shown
from tests.exporter.fake_proc import process, torchrun
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, FixedNvml, expose, node, series

A, B, C = (GpuSample(i, up=True, uuid=f"GPU-{i}", pci_bus_id=f"0000:1{i}") for i in range(3))
UNNAMED = GpuSample(1, up=False)


def lines(nvml: NvmlSource, *seen: GpuSample, number: int = 0) -> list[str]:
    """Return the series, without their common prefix, on a node that was seen to have *seen*."""
    expected = ExpectedGpus(None, number)
    expected.see(NodeSample(1.0, len(seen), gpus=seen))
    text = expose(GpuDevicesCollector(nvml, expected))
    return [line.removeprefix("rankskew_") for line in series(text)]


def worker(up: float, released: float = 0.0, restarts: float = 0.0) -> list[str]:
    return [
        f"nvml_worker_up {up}",
        f"nvml_worker_restarts_total {restarts}",
        f"nvml_released {released}",
    ]


@pytest.mark.parametrize(
    ("nvml", "seen", "shown"),
    [
        (NO_DRIVER, [], ["gpus_visible 0.0", "nvml_sample_timestamp_seconds 1.0", *worker(1.0)]),
        (NO_SAMPLE, [], worker(0.0)),
        # Until NVML has answered the number of GPUs is absent, not 0.
        (
            FixedNvml(NodeSample(2.0, gpus_visible=None)),
            [A],
            ["gpus_expected 1.0", "nvml_sample_timestamp_seconds 2.0", *worker(1.0)],
        ),
        # Nothing is said of released GPUs but how many there should be.
        (
            FixedNvml(None, worker_up=False, released=True),
            [A],
            ["gpus_expected 1.0", *worker(0.0, released=1.0)],
        ),
    ],
    ids=["no driver", "no fresh sample", "driver is still asked", "released"],
)
def test_node_of_whose_gpus_nothing_is_known(
    nvml: NvmlSource, seen: list[GpuSample], shown: list[str]
) -> None:
    assert lines(nvml, *seen) == shown


def test_lost_gpu_is_down_and_hides_nobody() -> None:
    """A lost GPU keeps nothing but its up series, with 0; its neighbour is whole."""
    lost = GpuSample(1, up=False, uuid="GPU-b", name="Model", pci_bus_id="0000:11")
    nvml = FixedNvml(node(A, lost).sample, worker_restarts=3)

    assert lines(nvml) == [
        "gpus_visible 2.0",
        'gpu_up{gpu="0",gpu_uuid="GPU-0"} 1.0',
        'gpu_up{gpu="1",gpu_uuid="GPU-b"} 0.0',
        'gpu_info{gpu="0",gpu_uuid="GPU-0",minor_number="",name="",numa_node="",'
        'pci_bus_id="0000:10",pcie_source="",serial="",xid_source=""} 1.0',
        'nvml_info{driver_version="999.1",nvml_version="13.1"} 1.0',
        "nvml_sample_timestamp_seconds 1.0",
        *worker(1.0, restarts=3.0),
    ]


GONE = NodeSample(1.0, 0, error_reason=NoGpuReason.DRIVER_NOT_LOADED, error="not loaded")


@pytest.mark.parametrize(
    ("nvml", "seen", "ups"),
    [
        # One that fell off the bus before the reboot is exposed by its UUID, without an index.
        (node(A, C), [A, B, C], ["0 GPU-0 1.0", "2 GPU-2 1.0", " GPU-1 0.0"]),
        # One that is lost from the start has the UUID that it had before, if one is missing.
        (node(A, UNNAMED), [A, B], ["0 GPU-0 1.0", "1 GPU-1 0.0"]),
        (node(A, UNNAMED), [A], ["0 GPU-0 1.0", "1  0.0"]),
        # Without its driver, a node that has GPUs differs from one that never had any.
        (FixedNvml(GONE), [A], [" GPU-0 0.0"]),
    ],
)
def test_gpu_that_is_no_longer_listed_is_down(
    nvml: NvmlSource, seen: list[GpuSample], ups: list[str]
) -> None:
    found = [line.split('"') for line in lines(nvml, *seen) if line.startswith("gpu_up{")]

    assert [f"{each[1]} {each[3]}{each[4][1:]}" for each in found] == ups


def test_reason_why_no_gpu_can_be_read_is_told() -> None:
    assert 'nvml_error_info{reason="driver_not_loaded"} 1.0' in lines(FixedNvml(GONE))


def test_given_number_is_expected_on_a_node_that_never_had_a_gpu() -> None:
    """With --gpus.expected, GPUs that were never seen count as missing."""
    assert lines(NO_DRIVER, number=8)[:2] == ["gpus_visible 0.0", "gpus_expected 8.0"]


@pytest.mark.parametrize(
    ("call", "labels"),
    [
        (StuckCall("nvmlDeviceGetPowerUsage", 1, 7.5, 1), 'nvmlDeviceGetPowerUsage",gpu="1"'),
        (StuckCall("nvmlInit", None, 7.5, 1), 'nvmlInit",gpu=""'),
    ],
)
def test_stuck_call_is_told_without_a_sample(call: StuckCall, labels: str) -> None:
    """The call that hangs is named for as long as it does, though no sample is fresh."""
    stuck = f'nvml_call_stuck_seconds{{function="{labels}}} 7.5'

    assert stuck in lines(FixedNvml(None, stuck_call=call))


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


def lines_of(name: str, *gpus: GpuSample) -> list[str]:
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

    assert lines_of(name, silent, lost, fine) == [
        line for _, _, lines in EXPOSED[name] for line in lines
    ]


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

    assert lines_of("gpu_xid", gpu) == ["xid_events_total 0.0"]


def test_lost_gpu_still_says_why() -> None:
    """XID 79 is the last that is heard of a GPU, and stays on the page while it is down."""
    gpu = GpuSample(2, False, "GPU-a", xid_events=7, xid_errors={"79": 1})

    assert lines_of("gpu_xid", gpu) == ["xid_events_total 7.0", 'xid_errors_total{xid="79"} 1.0']


def mig_series(*devices: MigDevice) -> list[str]:
    gpu = GpuSample(0, True, "GPU-a", mig_devices=devices)
    return series(expose(GpuMigCollector(node(GpuSample(1, True, "GPU-b"), gpu))))


def test_each_device_has_its_identity_and_what_can_be_read_of_it() -> None:
    """Without the right to ask for memory, or GPM, there is no number for it, and no 0."""
    a = 'gpu="0",gpu_uuid="GPU-a",mig_uuid="MIG-a"'

    assert mig_series(
        MigDevice("MIG-a", 9, 0, "1g.10gb", 10, 3, 75.0),
        MigDevice("MIG-b", 2, 0, "3g.40gb"),
    ) == [
        'rankskew_gpu_mig_info{compute_instance="0",gpu="0",gpu_instance="9",gpu_uuid="GPU-a",'
        'mig_uuid="MIG-a",profile="1g.10gb"} 1.0',
        'rankskew_gpu_mig_info{compute_instance="0",gpu="0",gpu_instance="2",gpu_uuid="GPU-a",'
        'mig_uuid="MIG-b",profile="3g.40gb"} 1.0',
        f"rankskew_gpu_mig_memory_total_bytes{{{a}}} 10.0",
        f"rankskew_gpu_mig_memory_used_bytes{{{a}}} 3.0",
        f"rankskew_gpu_mig_sm_active_ratio{{{a}}} 0.75",
    ]


def test_foreign_processes_are_counted() -> None:
    """Each once, also on several MIG instances; without a rank none is foreign."""
    seen = {each.pid: each for each in (process(10, torchrun(0)), process(20, {}))}
    on_a = (GpuProcess(10, gpu_instance=1), GpuProcess(10, gpu_instance=2), GpuProcess(20))
    nvml = node(
        GpuSample(0, up=True, uuid="GPU-a", processes=(*on_a, GpuProcess(404))),
        GpuSample(1, up=True, uuid="GPU-b", processes=()),
        GpuSample(2, up=True, uuid="GPU-c", processes=(GpuProcess(20),)),
        GpuSample(3, up=False, uuid="GPU-lost"),
    )

    assert shown(GpuProcessesCollector(RankJoin(nvml, lambda: seen, RankStore()))) == [
        'rankskew_gpu_foreign_processes{gpu="0",gpu_uuid="GPU-a"} 1.0',
    ]
