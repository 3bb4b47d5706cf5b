"""Which GPUs a node has, and edges of their readings; pages of whole nodes are golden files."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.collectors.gpu.devices import GpuDevicesCollector
from exporter.collectors.gpu.readings import GpuReadingsCollector
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import (
    GpuSample,
    NodeSample,
    NoGpuReason,
    NvmlSource,
    StuckCall,
)
from tests.exporter.collectors.expose import shown
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, FixedNvml, node

A, B, C = (GpuSample(i, up=True, uuid=f"GPU-{i}", pci_bus_id=f"0000:1{i}") for i in range(3))
UNNAMED = GpuSample(1, up=False)
GONE = NodeSample(1.0, 0, error_reason=NoGpuReason.DRIVER_NOT_LOADED, error="not loaded")
READ = "nvml_sample_timestamp_seconds"


def lines(nvml: NvmlSource, *seen: GpuSample, number: int = 0) -> list[str]:
    """Return the series, without their common prefix, on a node that was seen to have *seen*."""
    expected = ExpectedGpus(None, number)
    expected.see(NodeSample(1.0, len(seen), gpus=seen))
    return [line.removeprefix("rankskew_") for line in shown(GpuDevicesCollector(nvml, expected))]


def stuck(function: str, gpu: int | None) -> FixedNvml:
    return FixedNvml(None, worker_up=False, stuck_call=StuckCall(function, gpu, 7.5, 1))


# Of the worker: whether it is up, its restarts, and whether the GPUs are released.
@pytest.mark.parametrize(
    ("nvml", "seen", "shown", "worker"),
    [
        (NO_DRIVER, [], ["gpus_visible 0.0", f"{READ} 1.0"], (1, 0, 0)),
        (NO_SAMPLE, [], [], (0, 0, 0)),
        # Until NVML has answered the number of GPUs is absent, not 0.
        (
            FixedNvml(NodeSample(2.0, gpus_visible=None), worker_restarts=3),
            [A],
            ["gpus_expected 1.0", f"{READ} 2.0"],
            (1, 3, 0),
        ),
        # Nothing is said of released GPUs but how many there should be.
        (FixedNvml(None, False, released=True), [A], ["gpus_expected 1.0"], (0, 0, 1)),
        # Without its driver, a node that has GPUs differs from one that never had any.
        (
            FixedNvml(GONE),
            [A],
            [
                "gpus_visible 0.0",
                "gpus_expected 1.0",
                'gpu_up{gpu="",gpu_uuid="GPU-0"} 0.0',
                'nvml_error_info{reason="driver_not_loaded"} 1.0',
                f"{READ} 1.0",
            ],
            (1, 0, 0),
        ),
    ],
    ids=["no driver", "no fresh sample", "driver is still asked", "released", "driver is gone"],
)
def test_node_of_whose_gpus_nothing_is_known(
    nvml: NvmlSource, seen: list[GpuSample], shown: list[str], worker: tuple[float, float, float]
) -> None:
    names = ("nvml_worker_up", "nvml_worker_restarts_total", "nvml_released")
    of_worker = [f"{name} {value:.1f}" for name, value in zip(names, worker, strict=True)]

    assert lines(nvml, *seen) == [*shown, *of_worker]


@pytest.mark.parametrize(
    ("nvml", "seen", "ups"),
    [
        # One that fell off the bus before the reboot is exposed by its UUID, without an index.
        (node(A, C), [A, B, C], ["0 GPU-0 1.0", "2 GPU-2 1.0", " GPU-1 0.0"]),
        # One that is lost from the start has the UUID that it had before, if one is missing.
        (node(A, UNNAMED), [A, B], ["0 GPU-0 1.0", "1 GPU-1 0.0"]),
        (node(A, UNNAMED), [A], ["0 GPU-0 1.0", "1  0.0"]),
    ],
)
def test_gpu_that_is_no_longer_listed_is_down(
    nvml: NvmlSource, seen: list[GpuSample], ups: list[str]
) -> None:
    found = [line.split('"') for line in lines(nvml, *seen) if line.startswith("gpu_up{")]

    assert [f"{each[1]} {each[3]}{each[4][1:]}" for each in found] == ups


def test_given_number_is_expected_on_a_node_that_never_had_a_gpu() -> None:
    """With --gpus.expected, GPUs that were never seen count as missing."""
    assert lines(NO_DRIVER, number=8)[:2] == ["gpus_visible 0.0", "gpus_expected 8.0"]


@pytest.mark.parametrize(
    ("nvml", "labels"),
    [
        (stuck("nvmlDeviceGetPowerUsage", 1), 'nvmlDeviceGetPowerUsage",gpu="1"'),
        (stuck("nvmlInit", None), 'nvmlInit",gpu=""'),
    ],
)
def test_stuck_call_is_told_without_a_sample(nvml: NvmlSource, labels: str) -> None:
    """The call that hangs is named for as long as it does, though no sample is fresh."""
    assert f'nvml_call_stuck_seconds{{function="{labels}}} 7.5' in lines(nvml)


@pytest.mark.parametrize(
    ("name", "gpu", "exposed"),
    [
        # Idle (0x1) and a display's clock (0x100) hold up no training.
        ("gpu_throttle", {"throttle_reasons": 0x101}, []),
        # increase() sees the first error, because the counter of all was there before it.
        ("gpu_xid", {"xid_events": 0, "xid_errors": {}}, ["xid_events_total 0.0"]),
        # XID 79 is the last that is heard of a GPU, and stays on the page while it is down.
        (
            "gpu_xid",
            {"up": False, "xid_events": 7, "xid_errors": {"79": 1}},
            ["xid_events_total 7.0", "xid_errors_total 79 1.0"],
        ),
    ],
)
def test_edges_of_readings(name: str, gpu: dict[str, Any], exposed: list[str]) -> None:
    sample = replace(GpuSample(2, up=True, uuid="GPU-a"), **gpu)
    found = shown(GpuReadingsCollector(name, node(A, sample)))
    who = 'gpu="2",gpu_uuid="GPU-a"'
    short = (line.removeprefix("rankskew_gpu_").replace(who, "") for line in found)

    assert [line.replace("{}", "").replace('{,xid="79"}', " 79") for line in short] == exposed
