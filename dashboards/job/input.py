"""The job dashboard's row on what the ranks are given to do: input, batches, pauses, loaders."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import timeseries

from dashboards.job.peers import against_peers
from dashboards.job.series import per_second, per_step
from dashboards.shared.panels import time_panel
from dashboards.shared.variables import JOB

NOT_REPORTED = "The training loop reports no tokens"
NO_HOST = "No exporter sees the processes of these ranks"


def input_panels() -> Sequence[timeseries.Panel]:
    """Return the panels that compare what late ranks are given with what their peers are."""
    return tuple(
        against_peers(
            time_panel(title, description, unit, span=8).no_value(nothing), series, choose="topk"
        )
        for title, description, unit, nothing, series in (
            (
                "Time in data per step",
                "Time per step that a rank waits for its next batch. All ranks high: storage or "
                "preprocessing is too slow for the job. One high: that rank's input.",
                "s",
                "No step was finished",
                _data,
            ),
            (
                "Tokens per step",
                "Tokens in each rank's batches. A rank that gets more than its peers works longer "
                "in each step, and nothing is wrong with its GPU.",
                "short",
                NOT_REPORTED,
                _tokens,
            ),
            (
                "Padding",
                "Share of each rank's tokens that is padding: computed, but useless. Sorting by "
                "length or packing brings it under a tenth.",
                "percentunit",
                NOT_REPORTED,
                _padding,
            ),
            (
                "Garbage collection",
                "Share of the time for which Python's garbage collection paused a rank. Its peers "
                "wait meanwhile, and each rank collects at another time.",
                "percentunit",
                "No rank reports its garbage collection",
                lambda at: per_second("rankskew_gc_pause_seconds_total", at),
            ),
            (
                "CPUs used by loaders",
                "CPUs that the workers of each rank's DataLoader use, ended ones included. Workers "
                "at their limit (one CPU each) are too few or have too much to do.",
                "none",
                NO_HOST,
                lambda at: per_second("rankskew_rank_cpu_seconds_total", at, 'process="workers",'),
            ),
            (
                "Read from storage",
                "Bytes per second that each rank and its workers read from storage; what is in "
                "the page cache does not count. More than its peers: its share is not cached.",
                "Bps",
                NO_HOST,
                lambda at: per_second("rankskew_rank_read_bytes_total", at),
            ),
        )
    )


def _data(at: str) -> str:
    return per_step(f'rankskew_stage_seconds_total{{stage="data",{JOB}}}', at)


def _tokens(at: str) -> str:
    return per_step(f"rankskew_tokens_total{{{JOB}}}", at)


def _padding(at: str) -> str:
    padding = per_second("rankskew_padding_tokens_total", at)
    tokens = per_second("rankskew_tokens_total", at)
    return f"({padding} / ({tokens} > 0))"
