"""Figures of a GPU come from its samples, those that it has."""

from typing import Any

import pytest

from exporter.evidence.gpu import FOR_REASON, GpuReadings, facts_of
from exporter.evidence.ring import Ring
from exporter.nvml.sample import GpuSample, MigDevice


def gpu(**readings: Any) -> GpuSample:
    return GpuSample(0, up=True, uuid="GPU-0", **readings)


def means(*samples: GpuSample) -> dict[str, float]:
    """Return the figures over *samples*, which are five seconds apart."""
    readings, ring = GpuReadings(), Ring()
    for number, each in enumerate(samples):
        ring.add("gpu", 5.0 * number, readings.read(each, 1e9 + 5.0 * number))
    return ring.means("gpu", 0.0)


@pytest.mark.parametrize(
    "sample",
    [
        gpu(),
        GpuSample(0, up=False, uuid="GPU-0"),
        # A GPU that is newer than this exporter is not slow.
        gpu(pcie_link_generation=9, pcie_link_width=16),
        # MIG takes NVLinks down on purpose.
        gpu(nvlink_links_up=0, mig_devices=(MigDevice("MIG-0", 1, 0, "1g.10gb"),)),
    ],
)
def test_what_is_not_known_is_no_figure(sample: GpuSample) -> None:
    """No reading, a lost GPU: neither 0 nor an error."""
    assert means(sample, sample, sample) == {}


def test_first_sample_and_a_repeated_one_say_nothing() -> None:
    """There is no time that they are of."""
    readings = GpuReadings()

    assert readings.read(gpu(sm_clock_megahertz=1_980), 100.0) == []
    assert readings.read(gpu(sm_clock_megahertz=1_980), 100.0) == []


def test_levels_are_means_in_base_units() -> None:
    """Megahertz, milliwatts and percent become hertz, watts and ratios."""
    usual = gpu(
        memory_clock_megahertz=2_619,
        power_milliwatts=640_000,
        gpu_temperature_celsius=60,
        decoder_busy_percent=50.0,
        nvlink_links_up=18,
        pcie_link_generation=5,
        pcie_link_width=16,
    )
    found = means(usual, *[gpu(sm_clock_megahertz=each) for each in (1_500, 1_900)], usual)

    assert found == pytest.approx(
        {
            "sm_clock_hertz": 1.7e9,
            "memory_clock_hertz": 2.619e9,
            "gpu_power_watts": 640.0,
            "gpu_temperature_celsius": 60.0,
            "gpu_decoder_ratio": 0.5,
            "nvlink_links_up": 18.0,
            "pcie_link_bytes_per_second": 16 * 3.939e9,
        }
    )


def test_one_damaged_packet_is_one_error() -> None:
    """It is counted as an error and as a replay, on its link and in all: never twice."""
    found = means(
        gpu(pcie_errors=1, pcie_replays=3, nvlink_errors={"crc": 1}, nvlink_link_errors={"4": 1}),
        gpu(pcie_errors=6, pcie_replays=5, nvlink_errors={"crc": 2}, nvlink_link_errors={"4": 11}),
    )

    assert found == {"pcie_errors_per_second": 1.0, "nvlink_errors_per_second": 2.0}


def test_gpu_that_was_lost_does_not_catch_up() -> None:
    """What it counted in an hour without readings is not of the five seconds since it is back."""
    readings = GpuReadings()
    readings.read(gpu(pcie_errors=0), 0.0)
    readings.read(GpuSample(0, up=False), 5.0)

    assert readings.read(gpu(pcie_errors=3_600, sm_clock_megahertz=1_980), 3_600.0) == []
    assert [each.amount for each in readings.read(gpu(pcie_errors=3_601), 3_605.0)] == [1.0]


def test_reasons_to_throttle_overlap() -> None:
    half = dict.fromkeys(("hw_slowdown", "hw_thermal_slowdown", "sw_power_cap"), 2.5)
    found = means(gpu(throttle_seconds=dict.fromkeys(half, 0.0)), gpu(throttle_seconds=half))

    assert found["gpu_throttled_ratio"] == 0.5
    assert found[FOR_REASON + "hw_slowdown"] == 0.5


def test_faults_of_the_memory_count_from_the_first_sample() -> None:
    """Old ones have been dealt with; a row that could not be remapped stays a fault."""
    old = gpu(ecc_uncorrected_errors=7, row_remap_failed=0)
    new = gpu(ecc_uncorrected_errors=9, row_remap_failed=1)

    assert means(old, old) == {"gpu_memory_faults": 0.0}
    assert means(old, new) == {"gpu_memory_faults": 3.0}
    assert means(gpu(row_remap_failed=1), gpu(row_remap_failed=1)) == {"gpu_memory_faults": 1.0}


def test_facts_say_what_the_figures_are_of() -> None:
    """The reason that is there most, and of those as frequent the one that explains; not P0."""
    means = {f"{FOR_REASON}hw_slowdown": 0.5, f"{FOR_REASON}hw_power_brake_slowdown": 0.48}
    link = {"pcie_link_generation": 4, "pcie_link_width": 8}

    assert facts_of(gpu(performance_state=0), {}) == {}
    assert facts_of(gpu(), means) == {"gpu_throttled_ratio": "power brake"}
    assert facts_of(gpu(), means | {f"{FOR_REASON}sw_thermal_slowdown": 0.9}) == {
        "gpu_throttled_ratio": "too hot"
    }
    assert facts_of(gpu(performance_state=2, **link), {}) == {
        "memory_clock_hertz": "P2",
        "pcie_link_bytes_per_second": "generation 4, 8 lanes",
    }
