"""Each reason to hold a GPU's clocks down has its seconds; those that are active are named."""

from exporter.collectors.gpu.throttle import GpuThrottleCollector
from exporter.nvml.sample import GpuSample
from exporter.nvml.throttle_reasons import REASON_BITS
from tests.exporter.nvml.fixed import expose, node, series


def test_every_reason_has_its_seconds_and_the_active_ones_are_1() -> None:
    """The reasons are a closed set, so an alert on one that is quiet still has a 0 to read."""
    reasons = REASON_BITS["sw_power_cap"] | REASON_BITS["hw_thermal_slowdown"]
    seconds = {**dict.fromkeys(REASON_BITS, 0.0), "sw_power_cap": 1.5}
    gpu = GpuSample(3, True, "GPU-a", throttle_reasons=reasons, throttle_seconds=seconds)
    lines = series(expose(GpuThrottleCollector(node(gpu))))

    labels = 'gpu="3",gpu_uuid="GPU-a",reason='
    assert f'rankskew_gpu_throttle_seconds_total{{{labels}"sw_power_cap"}} 1.5' in lines
    assert [line for line in lines if "active" in line] == [
        f'rankskew_gpu_throttle_active{{{labels}"sw_power_cap"}} 1.0',
        f'rankskew_gpu_throttle_active{{{labels}"hw_thermal_slowdown"}} 1.0',
    ]
    assert len(lines) == 2 + len(REASON_BITS)


def test_an_idle_gpu_is_not_held_down() -> None:
    """What does not slow down training is left out: an idle GPU, or the clock of a display."""
    gpu = GpuSample(3, True, "GPU-a", throttle_reasons=0x101)

    assert series(expose(GpuThrottleCollector(node(gpu)))) == []
