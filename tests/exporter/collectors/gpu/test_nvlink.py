"""The GPUs' NVLinks are exposed in base units, summed per GPU, and the bad ones by link."""

from exporter.collectors.gpu.nvlink import GpuNvlinkCollector
from exporter.nvml.sample import GpuSample
from tests.exporter.nvml.fixed import expose, node, series


def test_gpu_without_nvlink_has_no_series() -> None:
    """A GPU without links has no series, instead of 0 links."""
    assert series(expose(GpuNvlinkCollector(node(GpuSample(0, up=True, uuid="GPU-a"))))) == []


def test_links_are_exposed_in_base_units() -> None:
    """Bytes, bytes a second of a million to the MB, and an error of each type."""
    gpu = GpuSample(
        3,
        up=True,
        uuid="GPU-a",
        nvlink_links=18,
        nvlink_links_up=17,
        nvlink_speed_min_megabytes_per_second=13_281,
        nvlink_transmit_bytes=5,
        nvlink_receive_bytes=7,
        nvlink_errors={"replay": 0, "crc": 42},
        nvlink_link_errors={"3": 42},
        nvlink_link_states={"5": 0},
    )

    assert series(expose(GpuNvlinkCollector(node(gpu)))) == [
        'rankskew_gpu_nvlink_transmit_bytes_total{gpu="3",gpu_uuid="GPU-a"} 5.0',
        'rankskew_gpu_nvlink_receive_bytes_total{gpu="3",gpu_uuid="GPU-a"} 7.0',
        'rankskew_gpu_nvlink_errors_total{gpu="3",gpu_uuid="GPU-a",type="replay"} 0.0',
        'rankskew_gpu_nvlink_errors_total{gpu="3",gpu_uuid="GPU-a",type="crc"} 42.0',
        'rankskew_gpu_nvlink_link_errors_total{gpu="3",gpu_uuid="GPU-a",link="3"} 42.0',
        'rankskew_gpu_nvlink_link_up{gpu="3",gpu_uuid="GPU-a",link="5"} 0.0',
        'rankskew_gpu_nvlink_links{gpu="3",gpu_uuid="GPU-a"} 18.0',
        'rankskew_gpu_nvlink_links_up{gpu="3",gpu_uuid="GPU-a"} 17.0',
        'rankskew_gpu_nvlink_speed_min_bytes_per_second{gpu="3",gpu_uuid="GPU-a"} 1.3281e+10',
    ]
