"""Why GPU clocks are throttled: each reason that NVML knows, now and in seconds."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.families import GPU_LABELS
from exporter.nvml.sample import NvmlSource
from exporter.nvml.throttle_reasons import REASON_BITS


class GpuThrottleCollector:
    """Expose NVML's clock event reasons, except those that do not slow down training."""

    name = "gpu_throttle"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[Metric]:
        active = GaugeMetricFamily(
            "rankskew_gpu_throttle_active",
            "1 while the GPU's clocks are throttled for this reason, absent while they are not "
            "(nvmlDeviceGetCurrentClocksEventReasons, read about once a second). hw_slowdown "
            "covers all hardware reasons, and can also appear while the clock changes.",
            labels=(*GPU_LABELS, "reason"),
        )
        seconds = CounterMetricFamily(
            "rankskew_gpu_throttle_seconds_total",
            "Time for which the GPU's clocks were throttled for this reason, in seconds since "
            "its readings began: from the driver's own nanosecond counters if it has them "
            "(sw_power_cap, sync_boost; since driver 575 also *_thermal_slowdown and "
            "hw_power_brake_slowdown), else summed from about one reading of the active reasons "
            "per second.",
            labels=(*GPU_LABELS, "reason"),
        )
        sample = self._nvml.latest()
        for gpu in () if sample is None else sample.gpus:
            labels = [str(gpu.index), gpu.uuid]
            if gpu.throttle_reasons is not None:
                # Only active ones: seven zeros for each GPU would be a ninth of all its series.
                for reason, bit in REASON_BITS.items():
                    if gpu.throttle_reasons & bit:
                        active.add_metric([*labels, reason], 1.0)
            for reason, total in (gpu.throttle_seconds or {}).items():
                seconds.add_metric([*labels, reason], total)
        yield active
        yield seconds
