"""Which series an exporter shows: the core always, and the detail of the collectors asked for.

Core is what the alerts, the verdict and the first rows of the dashboards read. Series cost whoever
scrapes them, on every node; so what is not named here is detail.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

# As the value of --series.detail: every collector.
ALL: Final = "all"


class Level(StrEnum):
    """When a series is shown without --series.detail."""

    CORE = "core"
    # From its first value that is not 0 on, for as long as there is such a series.
    NOT_ZERO = "core once it is not zero"
    DETAIL = "detail"


_CORE: Final = """
    rankskew_steps_total rankskew_stage_seconds_total rankskew_busy_seconds_total
    rankskew_last_step_timestamp_seconds rankskew_heartbeat_timestamp_seconds
    rankskew_rank_silent_seconds rankskew_stage_elapsed_seconds rankskew_rank_finished
    rankskew_joined_seconds_total rankskew_wait_caused_seconds_total
    rankskew_group_wait_seconds_total
    rankskew_rank_info rankskew_tokens_total rankskew_samples_total
    rankskew_rank_last_event_timestamp_seconds rankskew_gpu_rank_info

    rankskew_late_ratio rankskew_late_gpus rankskew_late_since_timestamp_seconds
    rankskew_late_line_ratio rankskew_late_cause_info rankskew_late_cause_share_ratio
    rankskew_late_cause_figure rankskew_late_pause_seconds rankskew_late_pause_steps

    rankskew_job_gpus_lost rankskew_job_stage_gpus_lost rankskew_job_slowdown_ratio
    rankskew_job_step_seconds rankskew_job_ranks rankskew_job_coverage_ratio
    rankskew_job_not_judgeable rankskew_job_judge_info rankskew_job_absent_ranks
    rankskew_job_change_ratio rankskew_job_change_gpus rankskew_job_change_since_timestamp_seconds
    rankskew_job_change_cause_info rankskew_job_late_together_ranks
    rankskew_job_stall_ratio rankskew_job_pause_gpu_seconds
    rankskew_rank_starting_seconds rankskew_node_starting_seconds
    rankskew_node_ranks rankskew_node_world_size rankskew_node_stepping_ranks
    rankskew_node_run_seconds rankskew_node_last_step_age_seconds
    rankskew_node_work_per_step_max rankskew_node_work_per_step_mean rankskew_node_working_ranks
    rankskew_node_padding_ratio rankskew_node_checkpoint_ratio
    rankskew_node_runtime_ranks

    rankskew_gpus_visible rankskew_gpus_expected rankskew_gpu_up rankskew_gpu_info
    rankskew_gpu_fault rankskew_gpu_utilization_ratio rankskew_gpu_sm_active_ratio
    rankskew_gpu_memory_total_bytes rankskew_gpu_memory_used_bytes rankskew_gpu_power_watts
    rankskew_gpu_pcie_transmit_bytes_per_second rankskew_gpu_pcie_receive_bytes_per_second
    rankskew_gpu_throttle_active rankskew_gpu_nvlink_link_up rankskew_gpu_xid_errors_total
    rankskew_gpu_mig_info rankskew_gpu_mig_sm_active_ratio
    rankskew_nvml_info rankskew_nvml_error_info rankskew_nvml_sample_timestamp_seconds
    rankskew_nvml_worker_up rankskew_nvml_released rankskew_nvml_call_stuck_seconds

    rankskew_node_oom_kills_total
    rankskew_node_memory_total_bytes rankskew_node_memory_available_bytes
    rankskew_exporter_build_info rankskew_exporter_web_config_last_reload_successful
    rankskew_exporter_web_config_last_reload_success_timestamp_seconds
    rankskew_collector_success rankskew_collector_last_success_timestamp_seconds
    process_cpu_seconds_total process_resident_memory_bytes process_start_time_seconds
"""
# Counts of what should not happen, and states that should not last.
_NOT_ZERO: Final = """
    rankskew_probe_errors_total rankskew_probe_dropped_steps_total
    rankskew_probe_push_failures_total rankskew_cuda_alloc_retries_total
    rankskew_gpu_row_remap_pending rankskew_gpu_row_remap_failed rankskew_gpu_recovery_action
    rankskew_gpu_xid_events_total rankskew_gpu_foreign_processes
    rankskew_nvml_worker_restarts_total
    rankskew_node_network_receive_drops_total rankskew_node_network_transmit_drops_total
    rankskew_node_network_errors_total rankskew_infiniband_errors_total
    rankskew_rank_processes_left_out
    rankskew_ingest_snapshots_total rankskew_ingest_unknown_fields_total
    rankskew_exporter_errors_total
"""
LEVELS: Final[Mapping[str, Level]] = dict.fromkeys(_CORE.split(), Level.CORE) | dict.fromkeys(
    _NOT_ZERO.split(), Level.NOT_ZERO
)
# Families of which only the series with these values of a label are more than detail.
PARTS: Final[Mapping[str, tuple[str, frozenset[str], Level]]] = {
    "rankskew_gpu_clock_hertz": ("clock", frozenset({"sm"}), Level.CORE),
    "rankskew_gpu_temperature_celsius": ("sensor", frozenset({"gpu"}), Level.CORE),
    "rankskew_gpu_ecc_errors_total": ("type", frozenset({"uncorrected"}), Level.NOT_ZERO),
    "rankskew_gpu_remapped_rows_total": ("type", frozenset({"uncorrected"}), Level.NOT_ZERO),
}

Key = tuple[tuple[str, str], ...]


def exposed_name(family: Metric) -> str:
    """Return the name of *family*'s series on /metrics."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def level(family: Metric, sample: Sample) -> Level:
    """Return the level of one series of *family*."""
    name = exposed_name(family)
    if name in PARTS:
        label, values, part = PARTS[name]
        return part if sample.labels.get(label) in values else Level.DETAIL
    return LEVELS.get(name, Level.DETAIL)


class Shown:
    """What one exporter shows; *detail* names the collectors of which it shows everything."""

    def __init__(self, detail: frozenset[str] = frozenset()) -> None:
        self._detail = detail
        # The series that were not 0, by family; at most as many as there are.
        self._woken: dict[str, set[Key]] = {}

    def of(self, collector: str, families: Iterable[Metric]) -> Iterator[Metric]:
        """Yield what is shown of the *families* of a collector, in their order."""
        if ALL in self._detail or collector in self._detail:
            yield from families
            return
        for family in families:
            name = exposed_name(family)
            if name in PARTS or LEVELS.get(name) is Level.NOT_ZERO:
                yield self._filtered(family, name)
            elif LEVELS.get(name) is Level.CORE:
                yield family

    def _filtered(self, family: Metric, name: str) -> Metric:
        before, woken = self._woken.get(name, set()), set()
        shown = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            its = level(family, sample)
            if its is Level.NOT_ZERO:
                key = tuple(sample.labels.items())
                if sample.value != 0 or key in before:
                    woken.add(key)
                    shown.samples.append(sample)
            elif its is Level.CORE:
                shown.samples.append(sample)
        self._woken[name] = woken
        return shown


EVERYTHING: Final = Shown(frozenset({ALL}))
