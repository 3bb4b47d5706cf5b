"""XID errors are counters that start at 0, and a lost GPU keeps them."""

from exporter.collectors.gpu.xid import GpuXidCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_gpu_that_cannot_tell_has_no_series() -> None:
    """Neither events nor a readable log: no series, and above all no 0."""
    assert series(expose(GpuXidCollector(node(GpuSample(0, True, "GPU-a"))))) == []


def test_gpu_without_an_error_has_a_0_to_count_from() -> None:
    """increase() sees the first error, because the counter of all of them was there before it."""
    gpu = GpuSample(0, True, "GPU-a", xid_events=0, xid_errors={})

    assert series(expose(GpuXidCollector(node(gpu)))) == [
        'rankskew_gpu_xid_events_total{gpu="0",gpu_uuid="GPU-a"} 0.0'
    ]


def test_lost_gpu_still_says_why() -> None:
    """XID 79 is the last that is heard of a GPU, and stays on the page while it is down."""
    gpu = GpuSample(3, False, "GPU-a", xid_events=7, xid_errors={"31": 2, "79": 1})

    assert series(expose(GpuXidCollector(node(gpu)))) == [
        'rankskew_gpu_xid_events_total{gpu="3",gpu_uuid="GPU-a"} 7.0',
        'rankskew_gpu_xid_errors_total{gpu="3",gpu_uuid="GPU-a",xid="31"} 2.0',
        'rankskew_gpu_xid_errors_total{gpu="3",gpu_uuid="GPU-a",xid="79"} 1.0',
    ]
