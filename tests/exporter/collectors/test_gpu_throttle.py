from exporter.collectors.gpu_throttle import GpuThrottleCollector
from exporter.nvml.sample import GpuSample
from exporter.nvml.throttle import REASON_BITS
from tests.exporter.nvml.fixed import NO_DRIVER, NO_SAMPLE, expose, node, series


def test_node_without_gpu_or_sample_has_no_series() -> None:
    """Without GPU, or without a fresh sample, there is nothing to expose and nothing fails."""
    assert series(expose(GpuThrottleCollector(NO_DRIVER))) == []
    assert series(expose(GpuThrottleCollector(NO_SAMPLE))) == []


def test_every_reason_has_a_series_and_the_active_ones_are_1() -> None:
    """The reasons are a closed set, so an alert on one that is quiet still has a 0 to read."""
    reasons = REASON_BITS["sw_power_cap"] | REASON_BITS["hw_thermal_slowdown"]
    seconds = {**dict.fromkeys(REASON_BITS, 0.0), "sw_power_cap": 1.5}
    gpu = GpuSample(3, True, "GPU-a", throttle_reasons=reasons, throttle_seconds=seconds)
    lines = series(expose(GpuThrottleCollector(node(gpu))))

    labels = 'gpu="3",gpu_uuid="GPU-a",reason='
    assert f'rankskew_gpu_throttle_seconds_total{{{labels}"sw_power_cap"}} 1.5' in lines
    assert [line for line in lines if "active" in line and line.endswith(" 1.0")] == [
        f'rankskew_gpu_throttle_active{{{labels}"sw_power_cap"}} 1.0',
        f'rankskew_gpu_throttle_active{{{labels}"hw_thermal_slowdown"}} 1.0',
    ]
    assert len(lines) == 2 * len(REASON_BITS)


def test_gpu_without_a_reading_is_absent_and_hides_nobody() -> None:
    """A GPU that is lost, or cannot tell, has no series; the next one has all of its own."""
    silent = GpuSample(0, up=True, uuid="GPU-silent")
    lost = GpuSample(1, up=False, uuid="GPU-lost")
    seconds = dict.fromkeys(REASON_BITS, 0.0)
    fine = GpuSample(2, True, "GPU-a", throttle_reasons=0, throttle_seconds=seconds)
    text = expose(GpuThrottleCollector(node(silent, lost, fine)))

    assert len(series(text)) == 2 * len(REASON_BITS)
    assert "GPU-silent" not in text
    assert "GPU-lost" not in text
