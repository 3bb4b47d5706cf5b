"""What is known of a node's GPUs and of the worker is exposed, and nothing more."""

import pytest

from exporter.collectors.gpu.devices import GpuDevicesCollector
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import GpuSample, NodeSample, NoGpuReason, NvmlSource, StuckCall
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, FixedNvml, expose, node, series

A, B, C = (GpuSample(i, up=True, uuid=f"GPU-{i}", pci_bus_id=f"0000:1{i}") for i in range(3))
UNNAMED = GpuSample(1, up=False)


def lines(nvml: NvmlSource, *seen: GpuSample, number: int = 0) -> list[str]:
    """Return the series, without their common prefix, on a node that was seen to have *seen*."""
    expected = ExpectedGpus(None, number)
    expected.see(NodeSample(1.0, len(seen), gpus=seen))
    text = expose(GpuDevicesCollector(nvml, expected))
    return [line.removeprefix("rankskew_") for line in series(text)]


def worker(up: float, released: float = 0.0, restarts: float = 0.0) -> list[str]:
    return [
        f"nvml_worker_up {up}",
        f"nvml_worker_restarts_total {restarts}",
        f"nvml_released {released}",
    ]


@pytest.mark.parametrize(
    ("nvml", "seen", "shown"),
    [
        (NO_DRIVER, [], ["gpus_visible 0.0", "nvml_sample_timestamp_seconds 1.0", *worker(1.0)]),
        (NO_SAMPLE, [], worker(0.0)),
        # Until NVML has answered the number of GPUs is absent, not 0.
        (
            FixedNvml(NodeSample(2.0, gpus_visible=None)),
            [A],
            ["gpus_expected 1.0", "nvml_sample_timestamp_seconds 2.0", *worker(1.0)],
        ),
        # Nothing is said of released GPUs but how many there should be.
        (
            FixedNvml(None, worker_up=False, released=True),
            [A],
            ["gpus_expected 1.0", *worker(0.0, released=1.0)],
        ),
    ],
    ids=["no driver", "no fresh sample", "driver is still asked", "released"],
)
def test_node_of_whose_gpus_nothing_is_known(
    nvml: NvmlSource, seen: list[GpuSample], shown: list[str]
) -> None:
    assert lines(nvml, *seen) == shown


def test_lost_gpu_is_down_and_hides_nobody() -> None:
    """A lost GPU keeps nothing but its up series, with 0; its neighbour is whole."""
    lost = GpuSample(1, up=False, uuid="GPU-b", name="Model", pci_bus_id="0000:11")
    nvml = FixedNvml(node(A, lost).sample, worker_restarts=3)

    assert lines(nvml) == [
        "gpus_visible 2.0",
        'gpu_up{gpu="0",gpu_uuid="GPU-0"} 1.0',
        'gpu_up{gpu="1",gpu_uuid="GPU-b"} 0.0',
        'gpu_info{gpu="0",gpu_uuid="GPU-0",minor_number="",name="",numa_node="",'
        'pci_bus_id="0000:10",pcie_source="",serial="",xid_source=""} 1.0',
        'nvml_info{driver_version="999.1",nvml_version="13.1"} 1.0',
        "nvml_sample_timestamp_seconds 1.0",
        *worker(1.0, restarts=3.0),
    ]


GONE = NodeSample(1.0, 0, error_reason=NoGpuReason.DRIVER_NOT_LOADED, error="not loaded")


@pytest.mark.parametrize(
    ("nvml", "seen", "ups"),
    [
        # One that fell off the bus before the reboot is exposed by its UUID, without an index.
        (node(A, C), [A, B, C], ["0 GPU-0 1.0", "2 GPU-2 1.0", " GPU-1 0.0"]),
        # One that is lost from the start has the UUID that it had before, if one is missing.
        (node(A, UNNAMED), [A, B], ["0 GPU-0 1.0", "1 GPU-1 0.0"]),
        (node(A, UNNAMED), [A], ["0 GPU-0 1.0", "1  0.0"]),
        # Without its driver, a node that has GPUs differs from one that never had any.
        (FixedNvml(GONE), [A], [" GPU-0 0.0"]),
    ],
)
def test_gpu_that_is_no_longer_listed_is_down(
    nvml: NvmlSource, seen: list[GpuSample], ups: list[str]
) -> None:
    found = [line.split('"') for line in lines(nvml, *seen) if line.startswith("gpu_up{")]

    assert [f"{each[1]} {each[3]}{each[4][1:]}" for each in found] == ups


def test_reason_why_no_gpu_can_be_read_is_told() -> None:
    assert 'nvml_error_info{reason="driver_not_loaded"} 1.0' in lines(FixedNvml(GONE))


def test_given_number_is_expected_on_a_node_that_never_had_a_gpu() -> None:
    """With --gpus.expected, GPUs that were never seen count as missing."""
    assert lines(NO_DRIVER, number=8)[:2] == ["gpus_visible 0.0", "gpus_expected 8.0"]


@pytest.mark.parametrize(
    ("call", "labels"),
    [
        (StuckCall("nvmlDeviceGetPowerUsage", 1, 7.5, 1), 'nvmlDeviceGetPowerUsage",gpu="1"'),
        (StuckCall("nvmlInit", None, 7.5, 1), 'nvmlInit",gpu=""'),
    ],
)
def test_stuck_call_is_told_without_a_sample(call: StuckCall, labels: str) -> None:
    """The call that hangs is named for as long as it does, though no sample is fresh."""
    stuck = f'nvml_call_stuck_seconds{{function="{labels}}} 7.5'

    assert stuck in lines(FixedNvml(None, stuck_call=call))
