"""The GPUs' power is in watts and their energy in joules."""

from exporter.collectors.gpu.power import GpuPowerCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_power_and_energy_are_in_base_units() -> None:
    """NVML's milliwatts and millijoules arrive in Prometheus as watts and joules."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        power_milliwatts=650_500,
        power_limit_milliwatts=700_000,
        energy_millijoules=2_500,
    )

    assert series(expose(GpuPowerCollector(node(gpu)))) == [
        'rankskew_gpu_power_watts{gpu="3",gpu_uuid="GPU-a"} 650.5',
        'rankskew_gpu_power_limit_watts{gpu="3",gpu_uuid="GPU-a"} 700.0',
        'rankskew_gpu_energy_joules_total{gpu="3",gpu_uuid="GPU-a"} 2.5',
    ]
