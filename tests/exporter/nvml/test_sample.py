import pytest

from exporter.nvml import sample as sample_module
from exporter.nvml.sample import (
    GpuProcess,
    GpuSample,
    MigDevice,
    NodeSample,
    StuckCall,
    pcie_bytes_per_second,
)


def test_sample_survives_the_pipe() -> None:
    """What the worker wrote is what the supervisor reads, absent readings included."""
    gpu = GpuSample(
        1,
        up=True,
        uuid="GPU-a",
        power_milliwatts=5,
        throttle_seconds={"sw_power_cap": 0.5},
        cpu_affinity=(0, 1),
        processes=(GpuProcess(4711, used_bytes=5), GpuProcess(4712, gpu_instance=2)),
        mig_devices=(MigDevice("MIG-a", 1, 0, "1g.10gb"),),
    )
    stuck = StuckCall("nvmlDeviceGetPowerUsage", 1, 6.25, 4711)
    sample = NodeSample(1.5, 2, "999.1", "13.1", (gpu, GpuSample(2, up=False)), stuck)

    assert NodeSample.from_json(sample.to_json()) == sample
    assert b"\n" not in sample.to_json()


@pytest.mark.parametrize("line", [b"hello", b"{}", b"[]", b'{"gpus": [{}], "stuck_call": null}'])
def test_anything_else_is_refused(line: bytes) -> None:
    """A line that is not a sample raises, so it is never taken for one."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        NodeSample.from_json(line)


def test_sample_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values travel without names, so those of a worker with other fields are rejected."""
    line = NodeSample(1.0, 0).to_json()
    monkeypatch.setattr(sample_module, "LAYOUT", 1)

    with pytest.raises(ValueError, match="a sample with layout"):
        NodeSample.from_json(line)


def test_stuck_call_says_what_hangs_where() -> None:
    """The log line about a stuck call names the function, the GPU and how long it has lasted."""
    text = str(StuckCall("nvmlDeviceGetPowerUsage", 3, 6.25, 1))

    assert text == "nvmlDeviceGetPowerUsage on GPU 3 has not returned for 6.2 s"
    assert str(StuckCall("nvmlInit", None, 6.0, 1)) == "nvmlInit has not returned for 6.0 s"


@pytest.mark.parametrize(
    ("generation", "lanes", "carries"),
    [
        (1, 1, 250e6),
        (2, 4, 2e9),
        (3, 16, 8e9 / 8 * 128 / 130 * 16),
        (4, 16, 16e9 / 8 * 128 / 130 * 16),
        (5, 8, 32e9 / 8 * 128 / 130 * 8),
        (6, 16, 64e9 / 8 * 242 / 256 * 16),
        (7, 16, None),  # Of a GPU that is newer than this exporter.
        (None, 16, None),
        (5, None, None),
    ],
)
def test_pcie_link_carries_what_is_left_of_its_transfers(
    generation: int | None, lanes: int | None, carries: float | None
) -> None:
    """Rounded up by less than a thousandth: a counter may not wrap sooner than is thought."""
    rate = pcie_bytes_per_second(generation, lanes)
    assert rate == carries or (carries and rate and carries <= rate < 1.001 * carries)
