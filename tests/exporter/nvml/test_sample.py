import pytest

from exporter.nvml.sample import GpuSample, NodeSample, StuckCall


def test_sample_survives_the_pipe() -> None:
    """What the worker wrote is what the supervisor reads, absent readings included."""
    gpu = GpuSample(1, up=True, uuid="GPU-a", power_milliwatts=5, throttle_seconds={"idle": 0.5})
    stuck = StuckCall("nvmlDeviceGetPowerUsage", 1, 6.25, 4711)
    sample = NodeSample(1.5, 2, "999.1", "13.1", (gpu, GpuSample(2, up=False)), stuck)

    assert NodeSample.from_json(sample.to_json()) == sample
    assert b"\n" not in sample.to_json()


@pytest.mark.parametrize("line", [b"hello", b"{}", b"[]", b'{"gpus": [{}], "stuck_call": null}'])
def test_anything_else_is_refused(line: bytes) -> None:
    """A line that is no sample raises, so it is never taken for one."""
    with pytest.raises((ValueError, TypeError, KeyError)):
        NodeSample.from_json(line)


def test_stuck_call_says_what_hangs_where() -> None:
    """The log line about a stuck call names the function, the GPU and how long it has lasted."""
    text = str(StuckCall("nvmlDeviceGetPowerUsage", 3, 6.25, 1))

    assert text == "nvmlDeviceGetPowerUsage on GPU 3 has not returned for 6.2 s"
    assert str(StuckCall("nvmlInit", None, 6.0, 1)) == "nvmlInit has not returned for 6.0 s"
