from exporter.collectors.gpu_power import GpuPowerCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuPowerCollector(NO_DRIVER))) == []
    assert series(expose(GpuPowerCollector(NO_SAMPLE))) == []


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


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    fine = GpuSample(
        2,
        up=True,
        uuid="GPU-a",
        power_milliwatts=650_500,
        power_limit_milliwatts=700_000,
        energy_millijoules=2_500,
    )
    text = expose(GpuPowerCollector(node(silent, lost, fine)))

    assert len(series(text)) == len(series(expose(GpuPowerCollector(node(fine)))))
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
