"""The errors of the GPUs' memories are counted, corrected ones apart from the others."""

from exporter.collectors.gpu.ecc import GpuEccCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_gpu_without_ecc_has_no_errors_and_not_0() -> None:
    """Where ECC is off nothing is counted, so nothing is said."""
    assert series(expose(GpuEccCollector(node(GpuSample(3, up=True, uuid="GPU-a"))))) == []


def test_errors_are_counted_by_type() -> None:
    """An alert on what could not be corrected finds a 0 on a healthy GPU."""
    gpu = GpuSample(3, up=True, uuid="GPU-a", ecc_corrected_errors=2**40, ecc_uncorrected_errors=0)

    assert series(expose(GpuEccCollector(node(gpu)))) == [
        'rankskew_gpu_ecc_errors_total{gpu="3",gpu_uuid="GPU-a",type="corrected"} '
        "1.099511627776e+12",
        'rankskew_gpu_ecc_errors_total{gpu="3",gpu_uuid="GPU-a",type="uncorrected"} 0.0',
    ]
