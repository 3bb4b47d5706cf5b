"""What is known of a node's GPUs and of the worker is told, and nothing more."""

from exporter.collectors.gpu_devices import GpuDevicesCollector
from exporter.nvml.sample import GpuSample, NodeSample
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, FixedNvml, expose, node, series


def test_node_without_driver_has_zero_gpus() -> None:
    """A node without GPU or driver says 0 GPUs, and nothing about a driver."""
    assert series(expose(GpuDevicesCollector(NO_DRIVER))) == [
        "rankskew_gpus_visible 0.0",
        "rankskew_nvml_sample_timestamp_seconds 1.0",
        "rankskew_nvml_worker_up 1.0",
        "rankskew_nvml_worker_restarts_total 0.0",
    ]


def test_node_without_a_fresh_sample_tells_only_of_the_worker() -> None:
    """While nothing is known of the GPUs no number stands for them, not even 0."""
    assert series(expose(GpuDevicesCollector(NO_SAMPLE))) == [
        "rankskew_nvml_worker_up 0.0",
        "rankskew_nvml_worker_restarts_total 0.0",
    ]


def test_node_whose_driver_is_still_asked_has_no_gpu_count() -> None:
    """Until NVML has answered the number of GPUs is absent, not 0."""
    text = expose(GpuDevicesCollector(FixedNvml(NodeSample(2.0, gpus_visible=None))))

    assert "\nrankskew_gpus_visible " not in text
    assert "rankskew_nvml_sample_timestamp_seconds 2.0" in text


def test_lost_gpu_is_down_and_hides_nobody() -> None:
    """A lost GPU keeps nothing but its up series, with 0; its neighbour is whole."""
    fine = GpuSample(0, up=True, uuid="GPU-a", name="Model", pci_bus_id="0000:10")
    lost = GpuSample(1, up=False, uuid="GPU-b", name="Model", pci_bus_id="0000:11")
    text = expose(GpuDevicesCollector(node(fine, lost)))

    assert 'rankskew_gpu_up{gpu="0",gpu_uuid="GPU-a"} 1.0' in text
    assert 'gpu="0",gpu_uuid="GPU-a",name="Model",pci_bus_id="0000:10"} 1.0' in text
    assert [line for line in series(text) if "GPU-b" in line] == [
        'rankskew_gpu_up{gpu="1",gpu_uuid="GPU-b"} 0.0'
    ]
    assert "rankskew_gpus_visible 2.0" in text


def test_restarts_and_versions_are_told() -> None:
    """The worker's restarts are a counter, the versions labels of an info series."""
    text = expose(GpuDevicesCollector(FixedNvml(node().sample, worker_restarts=3)))

    assert "rankskew_nvml_worker_restarts_total 3.0" in text
    assert 'rankskew_nvml_info{driver_version="999.1",nvml_version="13.1"} 1.0' in text
