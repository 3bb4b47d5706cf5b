"""Each part of a divided GPU has series of its own; other GPUs have none of them."""

from exporter.collectors.gpu.mig import GpuMigCollector
from exporter.nvml.sample import GpuSample, MigDevice
from tests.exporter.nvml.fixed import expose, node, series


def exposed(*devices: MigDevice) -> list[str]:
    gpu = GpuSample(0, True, "GPU-a", mig_devices=devices)
    return series(expose(GpuMigCollector(node(GpuSample(1, True, "GPU-b"), gpu))))


def test_gpu_that_is_not_divided_has_no_series() -> None:
    """MIG off, or on and nothing made yet: no device, no series."""
    assert exposed() == []


def test_each_device_has_its_identity_and_what_can_be_read_of_it() -> None:
    """Without the right to ask for memory, or GPM, there is no number for it, and no 0."""
    a = 'gpu="0",gpu_uuid="GPU-a",mig_uuid="MIG-a"'

    assert exposed(
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
