"""The node's GPUs as the live page shows them: their readings, and the ranks on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter.nvml.sample import REASON_BITS, GpuSample
from exporter.processes.foreign import foreign_processes
from exporter.processes.process import Process
from exporter.processes.rank_gpus import RankOnGpu


@dataclass(frozen=True, slots=True)
class RankOf:
    """A rank that runs on a GPU."""

    job_id: str
    rank: int


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU in base units; None is "no reading". One that is not *up* does not answer.

    *foreign_processes* is None where no rank is on the GPU, because it then belongs to no job.
    """

    gpu: int
    gpu_uuid: str
    name: str
    up: bool
    utilization_ratio: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: int | None
    power_watts: float | None
    sm_clock_hertz: float | None
    throttle_reasons: list[str]
    pcie_link_width: int | None
    pcie_link_width_max: int | None
    foreign_processes: int | None
    ranks: list[RankOf]


def view_gpus(
    gpus: Sequence[GpuSample], ranks: Sequence[RankOnGpu], processes: Mapping[int, Process]
) -> list[GpuView]:
    """Describe *gpus*, on which these *ranks* and *processes* run."""
    return [_view(gpu, ranks, processes) for gpu in gpus]


def _view(gpu: GpuSample, ranks: Sequence[RankOnGpu], processes: Mapping[int, Process]) -> GpuView:
    reasons = gpu.throttle_reasons or 0
    return GpuView(
        gpu=gpu.index,
        gpu_uuid=gpu.uuid,
        name=gpu.name,
        up=gpu.up,
        utilization_ratio=_scaled(gpu.gpu_busy_percent, 1 / 100),
        memory_used_bytes=gpu.memory_used_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        temperature_celsius=gpu.gpu_temperature_celsius,
        power_watts=_scaled(gpu.power_milliwatts, 1 / 1000),
        sm_clock_hertz=_scaled(gpu.sm_clock_megahertz, 1e6),
        throttle_reasons=[reason for reason, bit in REASON_BITS.items() if reasons & bit],
        pcie_link_width=gpu.pcie_link_width,
        pcie_link_width_max=gpu.pcie_link_width_max,
        foreign_processes=foreign_processes(gpu, ranks, processes),
        ranks=[RankOf(rank.job_id, rank.rank) for rank in ranks if rank.gpu_uuid == gpu.uuid],
    )


def _scaled(reading: float | None, factor: float) -> float | None:
    return None if reading is None else round(reading * factor, 4)
