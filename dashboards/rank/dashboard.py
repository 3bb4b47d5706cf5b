"""The rank dashboard: one rank of a job, its steps, GPU and host, beside its peers."""

from grafana_foundation_sdk.builders import dashboard

from dashboards.rank.figures import figures
from dashboards.rank.panels import (
    by_stage,
    cause,
    identity,
    lines,
    node_pressure,
    stages,
    throttled,
)
from dashboards.rank.peers import GPU, HOST, STEPS, beside
from dashboards.shared.board import board, events, filled, lifecycle, restarts
from dashboards.shared.causes import why_late
from dashboards.shared.variables import JOB, ONE_RANK, cluster_variable, job_variable, rank_variable


def rank_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of one rank of a job."""
    rank = (
        board("rank", "What one rank of a job does differently from its peers, and where.", JOB)
        .annotation(lifecycle(JOB))
        .annotation(restarts(JOB))
        .annotation(events(ONE_RANK))
        .with_variable(cluster_variable())
        .with_variable(job_variable())
        .with_variable(rank_variable())
    )
    why = why_late(ONE_RANK, "It is not late")
    rows = {
        "Its GPU": (*beside(GPU, 6), throttled(), node_pressure()),
        "Its processes": (*beside(HOST, 6), identity()),
    }
    steps = (stages(), by_stage(), *beside(STEPS, 6), lines(), cause())
    return filled(rank, (*figures(), why, *steps), rows)
