"""Figures that may explain why a rank is late: their names and units, the same on every node.

A rank's exporter measures them and tells the rank in its answer to a push; the ranks exchange them
through the join, so that the exporter of a late rank can hold it against its peers. A figure that
is not known is absent, in a message NaN. New ones are added at the end: a message may be longer or
shorter than this list.
"""

from typing import Final

from rank_probe.wire.stages import STAGES, SYNC

# Units are in the names: ratios are from 0 to 1; those without a unit count.
FIGURES: Final = (
    # Its GPU.
    "sm_clock_hertz",
    "memory_clock_hertz",
    "gpu_throttled_ratio",
    "gpu_power_watts",
    "gpu_temperature_celsius",
    "gpu_decoder_ratio",
    "gpu_foreign_processes",
    "gpu_memory_faults",
    "pcie_link_bytes_per_second",
    "pcie_errors_per_second",
    "nvlink_links_up",
    "nvlink_errors_per_second",
    # Its process, its workers and its cgroup.
    "main_running_ratio",
    "main_run_queue_ratio",
    "workers_run_queue_ratio",
    "saturated_workers",
    "cpu_quota_throttled_ratio",
    "cpus_near_gpu_ratio",
    "read_bytes_per_second",
    "major_faults_per_second",
    "io_waiting_ratio",
    "gc_ratio",
    "tokens_per_step",
    "samples_per_step",
    # Its node.
    "node_cpu_waiting_ratio",
    "node_io_waiting_ratio",
    "node_steal_cpus",
    "node_cpu_clock_hertz",
    "node_cpu_throttled_ratio",
    "node_numa_misses_per_second",
    "node_disk_busy_ratio",
    "node_disk_read_seconds",
    "node_mount_operation_seconds",
    "node_network_errors_per_second",
    "node_network_waiting_ratio",
    "node_network_link_bytes_per_second",
    "node_tcp_retransmitted_ratio",
    # Its own time in a step, by stage.
    *(f"{stage}_seconds" for stage in STAGES if stage != STAGES[SYNC]),
    # How long a step takes it, with its wait for others.
    "step_seconds",
)
