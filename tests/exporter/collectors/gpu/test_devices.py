"""What is known of a node's GPUs and of the worker is exposed, and nothing more."""

from exporter.collectors.gpu.devices import GpuDevicesCollector
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import GpuSample, NodeSample, NoGpuReason, NvmlSource, StuckCall
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, FixedNvml, node, series
from tests.exporter.nvml.fixed import expose as expose_collector


def expose(nvml: NvmlSource, *seen: GpuSample, number: int = 0) -> str:
    """Return the exposition on a node that was seen to have *seen*."""
    expected = ExpectedGpus(None, number)
    expected.see(NodeSample(1.0, len(seen), gpus=seen))
    return expose_collector(GpuDevicesCollector(nvml, expected))


def test_node_without_driver_has_zero_gpus() -> None:
    """A node without GPU or driver exposes 0 GPUs, and nothing about a driver."""
    assert series(expose(NO_DRIVER)) == [
        "rankskew_gpus_visible 0.0",
        "rankskew_nvml_sample_timestamp_seconds 1.0",
        "rankskew_nvml_worker_up 1.0",
        "rankskew_nvml_worker_restarts_total 0.0",
        "rankskew_nvml_released 0.0",
    ]


def test_node_without_a_fresh_sample_tells_only_of_the_worker() -> None:
    """While nothing is known of the GPUs, no number is exposed, not even 0."""
    assert series(expose(NO_SAMPLE)) == [
        "rankskew_nvml_worker_up 0.0",
        "rankskew_nvml_worker_restarts_total 0.0",
        "rankskew_nvml_released 0.0",
    ]


def test_node_whose_driver_is_still_asked_has_no_gpu_count() -> None:
    """Until NVML has answered the number of GPUs is absent, not 0."""
    text = expose(FixedNvml(NodeSample(2.0, gpus_visible=None)), GpuSample(0, True, "GPU-a"))

    assert "\nrankskew_gpus_visible " not in text
    assert "\nrankskew_gpu_up{" not in text
    assert "rankskew_nvml_sample_timestamp_seconds 2.0" in text


def test_lost_gpu_is_down_and_hides_nobody() -> None:
    """A lost GPU keeps nothing but its up series, with 0; its neighbour is whole."""
    fine = GpuSample(0, up=True, uuid="GPU-a", name="Model", pci_bus_id="0000:10")
    lost = GpuSample(1, up=False, uuid="GPU-b", name="Model", pci_bus_id="0000:11")
    text = expose(node(fine, lost))

    assert 'rankskew_gpu_up{gpu="0",gpu_uuid="GPU-a"} 1.0' in text
    assert (
        'name="Model",numa_node="",pci_bus_id="0000:10",pcie_source="",xid_source=""} 1.0' in text
    )
    assert [line for line in series(text) if "GPU-b" in line] == [
        'rankskew_gpu_up{gpu="1",gpu_uuid="GPU-b"} 0.0'
    ]
    assert "rankskew_gpus_visible 2.0" in text


def test_restarts_and_versions_are_told() -> None:
    """The worker's restarts are a counter, the versions labels of an info series."""
    text = expose(FixedNvml(node().sample, worker_restarts=3))

    assert "rankskew_nvml_worker_restarts_total 3.0" in text
    assert 'rankskew_nvml_info{driver_version="999.1",nvml_version="13.1"} 1.0' in text


A, B, C = (GpuSample(i, up=True, uuid=f"GPU-{i}", pci_bus_id=f"0000:1{i}") for i in range(3))


def ups(text: str) -> list[str]:
    """Return what is told of which GPU is up, without the name of the series."""
    name = "rankskew_gpu_up"
    return [line.removeprefix(name) for line in series(text) if line.startswith(name + "{")]


def test_gpu_that_is_no_longer_listed_is_down() -> None:
    """A GPU that fell off the bus before the reboot is exposed by its UUID, without an index."""
    text = expose(node(A, C), A, B, C)

    assert "rankskew_gpus_expected 3.0" in text
    assert "rankskew_gpus_visible 2.0" in text
    assert '{gpu="",gpu_uuid="GPU-1"} 0.0' in ups(text)
    assert len(ups(text)) == 3


def test_gpu_that_cannot_say_who_it_is_is_the_one_that_is_missing() -> None:
    """One GPU that is lost from the start is one series, with the UUID it had before."""
    text = expose(node(A, GpuSample(1, up=False)), A, B)

    assert ups(text) == ['{gpu="0",gpu_uuid="GPU-0"} 1.0', '{gpu="1",gpu_uuid="GPU-1"} 0.0']


def test_gpu_that_nobody_ever_saw_is_down_without_a_name() -> None:
    """If no GPU is missing, a lost GPU without a known UUID has only its index."""
    text = expose(node(A, GpuSample(1, up=False)), A)

    assert ups(text) == ['{gpu="0",gpu_uuid="GPU-0"} 1.0', '{gpu="1",gpu_uuid=""} 0.0']


def test_gpus_of_a_driver_that_is_gone_are_down() -> None:
    """Without its driver, a node that has GPUs differs from one that never had any."""
    sample = NodeSample(1.0, 0, error_reason=NoGpuReason.DRIVER_NOT_LOADED, error="not loaded")
    text = expose(FixedNvml(sample), A)

    assert ups(text) == ['{gpu="",gpu_uuid="GPU-0"} 0.0']
    assert 'rankskew_nvml_error_info{reason="driver_not_loaded"} 1.0' in text


def test_given_number_is_expected_on_a_node_that_never_had_a_gpu() -> None:
    """With --gpus.expected, GPUs that were never seen count as missing."""
    text = expose(NO_DRIVER, number=8)

    assert "rankskew_gpus_expected 8.0" in text
    assert ups(text) == []


def test_released_gpus_are_neither_up_nor_down() -> None:
    """While the GPUs are released nothing is said of them but how many there should be."""
    text = expose(FixedNvml(None, worker_up=False, released=True), A)

    assert series(text) == [
        "rankskew_gpus_expected 1.0",
        "rankskew_nvml_worker_up 0.0",
        "rankskew_nvml_worker_restarts_total 0.0",
        "rankskew_nvml_released 1.0",
    ]


def test_stuck_call_is_told_without_a_sample() -> None:
    """The call that hangs is named for as long as it does, though no sample is fresh."""
    on_gpu = FixedNvml(None, stuck_call=StuckCall("nvmlDeviceGetPowerUsage", 1, 7.5, 1))
    on_node = FixedNvml(None, stuck_call=StuckCall("nvmlInit", None, 61.0, 1))
    name = "rankskew_nvml_call_stuck_seconds"

    assert f'{name}{{function="nvmlDeviceGetPowerUsage",gpu="1"}} 7.5' in expose(on_gpu)
    assert f'{name}{{function="nvmlInit",gpu=""}} 61.0' in expose(on_node)
    assert f"{name}{{" not in expose(node(A))
