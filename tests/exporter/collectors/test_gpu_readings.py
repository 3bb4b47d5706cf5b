"""What every collector of GPU readings promises; a new collector is one entry of READINGS."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from exporter.collectors.base import Collector
from exporter.collectors.catalog import COLLECTORS
from exporter.collectors.gpu.activity import GpuActivityCollector
from exporter.collectors.gpu.clocks import GpuClocksCollector
from exporter.collectors.gpu.ecc import GpuEccCollector
from exporter.collectors.gpu.memory import GpuMemoryCollector
from exporter.collectors.gpu.mig import GpuMigCollector
from exporter.collectors.gpu.nvlink import GpuNvlinkCollector
from exporter.collectors.gpu.pcie import GpuPcieCollector
from exporter.collectors.gpu.power import GpuPowerCollector
from exporter.collectors.gpu.processes import GpuProcessesCollector
from exporter.collectors.gpu.recovery import GpuRecoveryCollector
from exporter.collectors.gpu.remapped_rows import GpuRemappedRowsCollector
from exporter.collectors.gpu.temperature import GpuTemperatureCollector
from exporter.collectors.gpu.throttle import GpuThrottleCollector
from exporter.collectors.gpu.utilization import GpuUtilizationCollector
from exporter.collectors.gpu.xid import GpuXidCollector
from exporter.nvml.sample import GpuProcess, GpuSample, MigDevice, NvmlSource
from exporter.nvml.throttle_reasons import REASON_BITS
from exporter.processes.rank_gpus import RankJoin
from exporter.ranks.store import RankStore
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series

Make = Callable[[NvmlSource], Collector]


def gpu_processes(nvml: NvmlSource) -> Collector:
    """Make the collector on a node without ranks."""
    return GpuProcessesCollector(RankJoin(nvml, dict, RankStore()))


# Each collector with all the fields of a GpuSample that it reads.
READINGS: Final[list[tuple[Make, dict[str, Any]]]] = [
    (
        GpuUtilizationCollector,
        {
            "gpu_busy_percent": 97,
            "gpu_busy_min_percent": 12,
            "memory_busy_percent": 0,
            "decoder_busy_percent": 0,
        },
    ),
    (GpuMemoryCollector, {"memory_total_bytes": 80, "memory_used_bytes": 30}),
    (
        GpuActivityCollector,
        {
            "sm_active_percent": 80.0,
            "sm_occupancy_percent": 50.0,
            "tensor_active_percent": 0.0,
            "dram_active_percent": 35.0,
        },
    ),
    (
        GpuNvlinkCollector,
        {
            "nvlink_links": 18,
            "nvlink_links_up": 0,
            "nvlink_speed_min_megabytes_per_second": 26_562,
            "nvlink_transmit_bytes": 0,
            "nvlink_receive_bytes": 5,
            "nvlink_errors": {"replay": 0, "recovery": 1, "crc": 42},
            "nvlink_link_errors": {"3": 43},
            "nvlink_link_states": {"5": 0},
        },
    ),
    (
        GpuPcieCollector,
        {
            "pcie_transmit_bytes_per_second": 5.0,
            "pcie_receive_bytes_per_second": 7.0,
            "pcie_link_generation": 4,
            "pcie_link_generation_max": 5,
            "pcie_link_width": 8,
            "pcie_link_width_max": 16,
            "pcie_replays": 0,
            "pcie_errors": 0,
        },
    ),
    (
        GpuClocksCollector,
        {
            "sm_clock_megahertz": 1755,
            "sm_clock_max_megahertz": 1980,
            "memory_clock_megahertz": 2619,
            "memory_clock_max_megahertz": 2620,
            "performance_state": 0,
        },
    ),
    (
        GpuThrottleCollector,
        {"throttle_reasons": 0x4, "throttle_seconds": dict.fromkeys(REASON_BITS, 0.0)},
    ),
    (
        GpuPowerCollector,
        {
            "power_milliwatts": 650_500,
            "power_limit_milliwatts": 700_000,
            "energy_millijoules": 2_500,
        },
    ),
    (
        GpuTemperatureCollector,
        {
            "gpu_temperature_celsius": 60,
            "memory_temperature_celsius": 72,
            "temperature_margin_celsius": 27,
        },
    ),
    (GpuEccCollector, {"ecc_corrected_errors": 37, "ecc_uncorrected_errors": 0}),
    (
        GpuRemappedRowsCollector,
        {
            "remapped_rows_corrected": 3,
            "remapped_rows_uncorrected": 0,
            "row_remap_pending": 1,
            "row_remap_failed": 0,
        },
    ),
    (GpuRecoveryCollector, {"recovery_action": 0}),
    (gpu_processes, {"processes": (GpuProcess(1),)}),
    (GpuXidCollector, {"xid_events": 3, "xid_errors": {"31": 2, "79": 1}}),
    (GpuMigCollector, {"mig_devices": (MigDevice("MIG-a", 9, 0, "1g.10gb", 10, 3),)}),
]
NAMES: Final = [make(NO_SAMPLE).name for make, _ in READINGS]

each_collector = pytest.mark.parametrize(("make", "readings"), READINGS, ids=NAMES)


def test_every_collector_of_readings_is_held_to_the_promises() -> None:
    """All that need NVML are here, but for those of devices, of faults and of ranks."""
    assert {*NAMES, "gpu_devices", "gpu_faults", "rank_gpus", "rank_host"} == {
        entry.name for entry in COLLECTORS if entry.needs_nvml
    }


@pytest.mark.parametrize("nvml", [NO_DRIVER, NO_SAMPLE], ids=["no driver", "no sample"])
@pytest.mark.parametrize("make", [make for make, _ in READINGS], ids=NAMES)
def test_node_without_gpu_or_sample_has_no_series(make: Make, nvml: NvmlSource) -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(make(nvml))) == []


@each_collector
def test_gpu_without_a_reading_is_absent_and_hides_nobody(
    make: Make, readings: dict[str, Any]
) -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(2, up=True, uuid="GPU-a", **readings)
    alone = expose(make(node(fine)))

    assert series(alone)
    assert all('gpu="2"' in line and 'gpu_uuid="GPU-a"' in line for line in series(alone))
    assert expose(make(node(silent, lost, fine))) == alone


@each_collector
def test_missing_reading_takes_only_its_own_series(make: Make, readings: dict[str, Any]) -> None:
    """Each reading has series of its own; a GPU that lacks one keeps the others as they were."""

    def exposed(**changes: None) -> set[str]:
        gpu = GpuSample(2, up=True, uuid="GPU-a", **{**readings, **changes})
        return set(series(expose(make(node(gpu)))))

    left = [exposed(**{field: None}) for field in readings]

    assert all(rest < exposed() for rest in left)
    assert sum(len(exposed() - rest) for rest in left) == len(exposed())
