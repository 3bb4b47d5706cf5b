"""Figures of a GPU, from NVML's samples."""

from collections.abc import Iterator, Mapping
from typing import Final

from exporter.evidence.growth import Growth
from exporter.evidence.ring import Increment
from exporter.nvml.sample import GpuSample, pcie_bytes_per_second
from exporter.past import Past

HERTZ_PER_MEGAHERTZ: Final = 1e6
AN_HOUR: Final = 3600.0
THROTTLED: Final = "gpu_throttled_ratio"
# Prefix of the readings of a single reason, which show which one it was; THROTTLED covers all.
FOR_REASON: Final = "throttled_for:"
# In the order in which they explain: hw_slowdown covers those before it.
REASONS: Final = {
    "hw_thermal_slowdown": "too hot",
    "sw_thermal_slowdown": "too hot",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "slowed down by the hardware",
    "sw_power_cap": "power cap",
    "sync_boost": "sync boost",
    "applications_clocks_setting": "clocks set by an administrator",
}
# A reason explains if it is there for at least this share of the time of the most frequent one.
NEARLY: Final = 0.9


class GpuReadings:
    """Reads the samples of one GPU, one after another."""

    def __init__(self) -> None:
        self._grown = Growth()
        self._errors = Past(AN_HOUR)

    def read(self, gpu: GpuSample, seconds: float) -> list[Increment]:
        """Return what *gpu* shows; the sample is of the time *seconds*, of any clock."""
        if not gpu.up:
            self._grown = Growth()  # Growth while it is lost does not count as later growth.
            return []
        since = self._grown.of("time", seconds) or 0.0
        levels = list(self._levels(gpu, seconds))
        # Read the counters the first time as well: the next reading is compared with them.
        counts = [*self._counts(gpu), *self._throttled(gpu, since)]
        if not since:
            return []
        return [
            *(
                Increment(figure, level * since, since)
                for figure, level in levels
                if level is not None
            ),
            *(Increment(figure, grown, since) for figure, grown in counts if grown is not None),
        ]

    def _levels(self, gpu: GpuSample, seconds: float) -> Iterator[tuple[str, float | None]]:
        yield "sm_clock_hertz", _scaled(gpu.sm_clock_megahertz, HERTZ_PER_MEGAHERTZ)
        yield "memory_clock_hertz", _scaled(gpu.memory_clock_megahertz, HERTZ_PER_MEGAHERTZ)
        yield "gpu_power_watts", _scaled(gpu.power_milliwatts, 1e-3)
        yield "gpu_temperature_celsius", gpu.gpu_temperature_celsius
        yield "gpu_decoder_ratio", _scaled(gpu.decoder_busy_percent, 1e-2)
        yield "gpu_memory_faults", self._memory_faults(gpu, seconds)
        link = pcie_bytes_per_second(gpu.pcie_link_generation, gpu.pcie_link_width)
        yield "pcie_link_bytes_per_second", link
        # MIG takes links down on purpose; a card without a bridge has none up.
        yield "nvlink_links_up", None if gpu.mig_devices is not None else gpu.nvlink_links_up

    def _counts(self, gpu: GpuSample) -> Iterator[tuple[str, float | None]]:
        # A damaged packet is an error and is replayed: one event, in one count or in both.
        yield (
            "pcie_errors_per_second",
            _most(
                self._grown.of("pcie_errors", gpu.pcie_errors),
                self._grown.of("pcie_replays", gpu.pcie_replays),
            ),
        )
        nvlink = self._grown.of_each("nvlink", gpu.nvlink_errors)
        links = self._grown.of_each("link", gpu.nvlink_link_errors)
        yield (
            "nvlink_errors_per_second",
            _most(sum(nvlink.values()) if nvlink else None, max(links.values(), default=None)),
        )

    def _memory_faults(self, gpu: GpuSample, seconds: float) -> float | None:
        """Return the uncorrected errors of the last hour, plus a row that could not be remapped."""
        if (errors := gpu.ecc_uncorrected_errors) is None:
            return gpu.row_remap_failed
        self._errors.count("ecc", errors, seconds)
        return self._errors.increase("ecc", errors) + (gpu.row_remap_failed or 0)

    def _throttled(self, gpu: GpuSample, since: float) -> Iterator[tuple[str, float]]:
        grown = self._grown.of_each("throttled", gpu.throttle_seconds)
        for reason, seconds in grown.items():
            yield FOR_REASON + reason, seconds
        if grown:  # Reasons overlap: not their sum.
            yield THROTTLED, min(max(grown.values()), since)


def facts_of(gpu: GpuSample, means: Mapping[str, float]) -> dict[str, str]:
    """Return texts for people about the figures of *gpu*, given its *means* since the onset."""
    facts = {}
    shares = {each: means.get(FOR_REASON + each, 0.0) for each in REASONS}
    most = max(shares.values())
    if most > 0:
        reason = next(each for each, share in shares.items() if share >= NEARLY * most)
        facts[THROTTLED] = REASONS[reason]
    if gpu.performance_state:
        facts["memory_clock_hertz"] = f"P{gpu.performance_state}"
    if gpu.pcie_link_generation is not None and gpu.pcie_link_width is not None:
        facts["pcie_link_bytes_per_second"] = (
            f"generation {gpu.pcie_link_generation}, {gpu.pcie_link_width} lanes"
        )
    return facts


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _most(*grown: float | None) -> float | None:
    return max((each for each in grown if each is not None), default=None)
