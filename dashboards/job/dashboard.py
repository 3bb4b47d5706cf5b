"""The job dashboard: which ranks are late, in which stage, since when, at what cost."""

from grafana_foundation_sdk.builders import dashboard

from dashboards.job.details import difference_panels, hang_panels
from dashboards.job.drift import drift_panels
from dashboards.job.figures import figures
from dashboards.job.gpus import gpu_panels, symmetry_panels
from dashboards.job.input import input_panels
from dashboards.job.losses import late_ranks, lost_by_kind, lost_by_rank_and_stage
from dashboards.job.over_time import late_over_time, run_panels, state_over_time, wait_heatmap
from dashboards.job.series import NOBODY
from dashboards.shared.board import board, changes, events, filled, lifecycle, restarts
from dashboards.shared.causes import why_late
from dashboards.shared.variables import JOB, cluster_variable, job_variable


def job_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of one training job."""
    job = (
        board(
            "job",
            "Which rank a training job waits for, in which stage, since when, and at what cost.",
            JOB,
        )
        .annotation(lifecycle(JOB))
        .annotation(restarts(JOB))
        .annotation(changes(JOB))
        .annotation(events(f'rank="0",{JOB}'))  # It usually saves and evaluates; all start alike.
        .with_variable(cluster_variable())
        .with_variable(job_variable())
    )
    losses = (lost_by_kind(), lost_by_rank_and_stage(), late_ranks(), why_late(JOB, NOBODY))
    rows = {
        "How the late rank differs from its peers": difference_panels(),
        "Is the job hanging?": hang_panels(),
        "The run so far": (late_over_time(), wait_heatmap(), *run_panels()),
        "GPUs of the ranks": gpu_panels(),
    }
    filled(job, (*figures(), state_over_time(), *losses), rows)
    for title, hidden in (
        ("Symmetry", symmetry_panels()),
        ("Input and work", input_panels()),
        ("Configuration drift", drift_panels()),
    ):
        row = dashboard.Row(title).collapsed(True)
        for panel in hidden:
            row.with_panel(panel)
        job.with_row(row)
    return job
