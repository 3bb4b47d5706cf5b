"""Ranks and the node: the GPU, CPUs, pod and Slurm job of each rank, with or without the probe."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from exporter.collectors.rank.ranks import IDENTITY, identity
from exporter.collectors.table import Row, families
from exporter.processes.process import as_label
from exporter.processes.rank_gpus import RankJoin, RankOnGpu, numa_local

# CUDA accepts UUID prefixes too; eight full UUIDs would be longer than a label may be.
_UUID: Final = re.compile(r"((?:GPU|MIG)-[0-9a-fA-F]{8})(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class RankGpusCollector:
    """Expose every rank with a known GPU; call from the event loop, as RankJoin requires."""

    name = "rank_gpus"
    interval_seconds = 0.0

    def __init__(self, join: RankJoin) -> None:
        self._join = join

    def collect(self) -> Iterator[Metric]:
        ranks = self._join.ranks()
        yield _gpu_rank_info(ranks)
        yield from families(ROWS, IDENTITY, [(identity(rank), rank) for rank in ranks])


def _gpu_rank_info(ranks: Sequence[RankOnGpu]) -> Metric:
    family = GaugeMetricFamily(
        "rankskew_gpu_rank_info",
        "The GPU that the rank runs on, as labels to join; always 1. source is probe if the "
        "rank's probe named the GPU, and environ if NVML lists a process on it that was started "
        "as this rank; with several GPUs, the one on which that process holds most memory. "
        "visible_devices and device_order are CUDA_VISIBLE_DEVICES (else NVIDIA_VISIBLE_DEVICES) "
        "and CUDA_DEVICE_ORDER at the start of the process (NVML's process lists and "
        "/proc/<pid>/environ, read every 5 s).",
        labels=[
            "gpu",
            "gpu_uuid",
            *IDENTITY,
            "local_rank",
            "source",
            "visible_devices",
            "device_order",
        ],
    )
    for rank in ranks:
        index = "" if rank.gpu is None else str(rank.gpu.index)
        environment = (rank.process and rank.process.environment) or {}
        where = [rank.local_rank, rank.source, *_device_order(environment)]
        family.add_metric([index, rank.gpu_uuid, *identity(rank), *where], 1)
    return family


def _device_order(environment: Mapping[str, str]) -> tuple[str, str]:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    order = environment.get("CUDA_DEVICE_ORDER", "")
    return as_label(_UUID.sub(r"\1", visible)), as_label(order)


def _slurm(rank: RankOnGpu) -> dict[tuple[str, ...], float]:
    if rank.process is None:
        return {}
    environment, cgroup = rank.process.environment or {}, rank.process.cgroup
    # The cgroup first: Slurm made it, while anyone can set a variable.
    job_id = cgroup.slurm_job_id or environment.get("SLURM_JOB_ID", "")
    step_id = cgroup.slurm_step_id or environment.get("SLURM_STEP_ID", "")
    partition = environment.get("SLURM_JOB_PARTITION", "")
    job = job_id, step_id, partition, environment.get("SLURM_JOB_USER", "")
    return {tuple(map(as_label, job)): 1.0} if job_id else {}


def _pod(rank: RankOnGpu) -> dict[tuple[str, ...], float]:
    process = rank.process
    # Not both a Slurm job and a pod, to limit the series per rank.
    if process is None or not process.cgroup.pod_uid or _slurm(rank):
        return {}
    environment, cgroup = process.environment or {}, process.cgroup
    name = environment.get("POD_NAME", "")
    if not name and process.has_own_hostname:  # With host networking it is the node's name.
        name = environment.get("HOSTNAME", "")
    namespace = environment.get("POD_NAMESPACE", "")
    return {tuple(map(as_label, (namespace, name, cgroup.pod_uid, cgroup.container_id))): 1.0}


ROWS: Final[tuple[Row[RankOnGpu], ...]] = (
    Row(
        "rankskew_rank_numa_local",
        "Share of the CPUs allowed for the rank's main thread that are on its GPU's NUMA node, 0 "
        "to 1: 1 means bound to it, 0 bound elsewhere, 0.5 not bound at all on a node with two "
        "NUMA nodes. Absent if the GPU's NUMA node is not known (/proc/<pid>/status, read every "
        "5 s).",
        lambda rank: numa_local(rank.gpu, rank.process),
    ),
    Row(
        "rankskew_rank_slurm_info",
        "The Slurm job of the rank, as labels to join; always 1 (/proc/<pid>/cgroup, else its "
        "SLURM_ variables).",
        _slurm,
        ("slurm_job_id", "slurm_step_id", "partition", "user"),
    ),
    Row(
        "rankskew_rank_pod_info",
        "The Kubernetes pod of the rank, as labels to join; always 1; absent for a rank that "
        "Slurm started inside a pod. namespace needs POD_NAMESPACE in the container's "
        "environment, from the downward API; pod is POD_NAME, else the host name "
        "(/proc/<pid>/cgroup and environ).",
        _pod,
        ("namespace", "pod", "pod_uid", "container_id"),
    ),
)
