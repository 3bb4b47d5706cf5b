"""Replaced rows of the GPUs' memories are counted, and pending ones are exposed."""

from exporter.collectors.gpu.remapped_rows import GpuRemappedRowsCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_gpu_that_cannot_replace_rows_has_no_series() -> None:
    """A GPU before Ampere has no series of rows."""
    gpu = GpuSample(3, up=True, uuid="GPU-a")

    assert series(expose(GpuRemappedRowsCollector(node(gpu)))) == []


def test_rows_are_counted_and_a_pending_one_is_told() -> None:
    """A row that waits for a reset, and one that could not be replaced, are 0 or 1."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        remapped_rows_corrected=3,
        remapped_rows_uncorrected=1,
        row_remap_pending=1,
        row_remap_failed=0,
    )

    assert series(expose(GpuRemappedRowsCollector(node(gpu)))) == [
        'rankskew_gpu_remapped_rows_total{gpu="3",gpu_uuid="GPU-a",type="corrected"} 3.0',
        'rankskew_gpu_remapped_rows_total{gpu="3",gpu_uuid="GPU-a",type="uncorrected"} 1.0',
        'rankskew_gpu_row_remap_pending{gpu="3",gpu_uuid="GPU-a"} 1.0',
        'rankskew_gpu_row_remap_failed{gpu="3",gpu_uuid="GPU-a"} 0.0',
    ]
