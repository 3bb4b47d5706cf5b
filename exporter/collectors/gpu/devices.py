"""Which GPUs this node has, which answer, who else is on them, and the process that reads them."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.gpu.readings import GPU_LABELS
from exporter.gpu_faults.now import ups
from exporter.nvml.expected import ExpectedGpus
from exporter.nvml.sample import NodeSample, NvmlSource
from exporter.processes.foreign import foreign_processes
from exporter.processes.rank_gpus import RankJoin

# Labels of rankskew_gpu_info, and the fields of GpuSample that they show.
ABOUT: Final = (
    *("name", "serial", "pci_bus_id", "minor_number", "numa_node"),
    *("pcie_source", "xid_source"),
)


class GpuDevicesCollector:
    """Expose the node's GPUs, the driver, and the NVML worker that the exporter supervises."""

    name = "gpu_devices"
    interval_seconds = 0.0

    def __init__(self, nvml: NvmlSource, expected: ExpectedGpus) -> None:
        self._nvml = nvml
        self._expected = expected

    def collect(self) -> Iterator[Metric]:
        sample = self._nvml.latest()
        yield from _counts(sample, self._expected)
        yield _up(sample, self._expected)
        yield _info(sample)
        yield from _driver(sample)
        yield from _worker(self._nvml)


def _worker(nvml: NvmlSource) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "rankskew_nvml_worker_up",
        "1 if the process that reads the GPUs is running and has reported within the last seconds.",
        value=float(nvml.worker_up),
    )
    yield CounterMetricFamily(
        "rankskew_nvml_worker_restarts_total",
        "Times that the process that reads the GPUs was replaced because it crashed or the "
        "driver hung. Counters that it keeps itself then restart at 0.",
        value=nvml.worker_restarts,
    )
    yield GaugeMetricFamily(
        "rankskew_nvml_released",
        "1 while the GPUs are released by `rankskew control --release-gpus`: no process of the "
        "exporter has the driver's files open, and no GPU has a series.",
        value=float(nvml.released),
    )
    stuck = GaugeMetricFamily(
        "rankskew_nvml_call_stuck_seconds",
        "How long the longest hanging NVML call has been running, in seconds; absent if none "
        "hangs. gpu is empty for a call that concerns no single GPU.",
        labels=["function", "gpu"],
    )
    call = nvml.stuck_call
    if call is not None:
        stuck.add_metric([call.function, "" if call.gpu is None else str(call.gpu)], call.seconds)
    yield stuck


def _counts(sample: NodeSample | None, expected: ExpectedGpus) -> Iterator[Metric]:
    visible = GaugeMetricFamily(
        "rankskew_gpus_visible",
        "GPUs that the driver lists, including lost ones; 0 on a node without GPU or driver.",
    )
    if sample is not None and sample.gpus_visible is not None:
        visible.add_metric([], sample.gpus_visible)
    yield visible
    number = GaugeMetricFamily(
        "rankskew_gpus_expected",
        "GPUs that this node should have: --gpus.expected, else all GPUs ever seen on it, stored "
        "in --path.state.",
    )
    if expected.number is not None:
        number.add_metric([], expected.number)
    yield number


def _up(sample: NodeSample | None, expected: ExpectedGpus) -> Metric:
    family = GaugeMetricFamily(
        "rankskew_gpu_up",
        "1 if the GPU answers; 0 if it is lost, needs a reset, hangs in the driver, or (with an "
        "empty gpu) is expected but no longer listed.",
        labels=GPU_LABELS,
    )
    for index, uuid, up in ups(sample, expected):
        family.add_metric([index, uuid], float(up))
    return family


def _info(sample: NodeSample | None) -> Metric:
    info = GaugeMetricFamily(
        "rankskew_gpu_info",
        "The GPU's model, serial number and location, and the sources of its readings; always 1. "
        "minor_number is the number of /dev/nvidia*, pcie_source is gpm, byte_counter or sampled, "
        "xid_source is kmsg or nvml.",
        labels=(*GPU_LABELS, *ABOUT),
    )
    for gpu in () if sample is None else sample.gpus:
        if gpu.up:
            about = (getattr(gpu, name) for name in ABOUT)
            texts = ("" if value is None else str(value) for value in about)
            info.add_metric([str(gpu.index), gpu.uuid, *texts], 1)
    return info


def _driver(sample: NodeSample | None) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "rankskew_nvml_info",
        "Versions of the NVIDIA driver and its NVML library; always 1.",
        labels=["driver_version", "nvml_version"],
    )
    error = GaugeMetricFamily(
        "rankskew_nvml_error_info",
        "Reason why no GPU can be read; always 1, absent while GPUs are read. The log says what "
        "to do. The reason no_library is normal on a node without an NVIDIA GPU.",
        labels=["reason"],
    )
    timestamp = GaugeMetricFamily(
        "rankskew_nvml_sample_timestamp_seconds",
        "Time at which the GPUs were last read, in Unix seconds; they are read about once a "
        "second.",
    )
    if sample is not None:
        timestamp.add_metric([], sample.timestamp_seconds)
        if sample.driver_version is not None and sample.nvml_version is not None:
            info.add_metric([sample.driver_version, sample.nvml_version], 1)
        if sample.error_reason is not None:
            error.add_metric([sample.error_reason], 1)
    yield info
    yield error
    yield timestamp


class GpuProcessesCollector:
    """Count foreign processes; call from the event loop, as RankJoin requires."""

    name = "gpu_processes"
    interval_seconds = 0.0

    def __init__(self, join: RankJoin) -> None:
        self._join = join

    def collect(self) -> Iterator[Metric]:
        foreign = GaugeMetricFamily(
            "rankskew_gpu_foreign_processes",
            "Processes on the GPU that do not belong to the job of the rank on it: they do not "
            "have its environment, are not in its container or Slurm job, are neither its "
            "ancestors nor its descendants, and are not part of the driver or a desktop. Absent "
            "for a GPU without a rank, with MIG, or if /proc shows none of the processes (NVML's "
            "process lists and /proc, read every 5 s).",
            labels=GPU_LABELS,
        )
        ranks, processes = self._join.ranks(), self._join.processes()
        for gpu in self._join.gpus():
            count = foreign_processes(gpu, ranks, processes)
            if count is not None:
                foreign.add_metric([str(gpu.index), gpu.uuid], count)
        yield foreign
