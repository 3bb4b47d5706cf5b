"""The job dashboard: which ranks are late, in which stage, since when, at what cost."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from dashboards.job_details import difference_panels, gpu_panels, hang_panels
from dashboards.job_figures import figures
from dashboards.job_losses import late_ranks, lost_by_kind, lost_by_rank_and_stage
from dashboards.job_series import (
    FIRING,
)
from dashboards.panels import (
    DATASOURCE,
    LATE_COLOUR,
    RUNBOOKS_URL,
)


def job_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of one training job."""
    job = board(
        "Job", "Which rank a training job waits for, in which stage, since when, and at what cost."
    )
    for figure in figures():
        job.with_panel(figure)
    for panel in (lost_by_kind(), lost_by_rank_and_stage(), late_ranks()):
        job.with_panel(panel)
    for title, panels in (
        ("How the late rank differs from its peers", difference_panels()),
        ("Is the job hanging?", hang_panels()),
        ("GPUs of the ranks", gpu_panels()),
    ):
        job.with_row(dashboard.Row(title))
        for panel in panels:
            job.with_panel(panel)
    return job


def board(name: str, description: str) -> dashboard.Dashboard:
    """Return an empty dashboard with what each must have: links, alerts, the choice of a job."""
    return (
        dashboard.Dashboard(f"Rankskew / {name}")
        .uid(f"rankskew-{name.lower()}")
        .description(description)
        .tags(["rankskew"])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_runbooks())
        .annotation(_alerts())
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
        .with_variable(_job_variable())
    )


def _runbooks() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Runbooks")
        .type(models.DashboardLinkType.LINK)
        .icon("doc")
        .tooltip("What each alert means and what to do about it")
        .url(RUNBOOKS_URL)
        .target_blank(True)
    )


def _alerts() -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(LATE_COLOUR)
        .expr(FIRING)
        .title_format("{{alertname}}")
        .text_format("rank {{rank}} {{stage}}")
        .tag_keys("severity")
    )


def _job_variable() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("job_id")
        .label("Job")
        .datasource(DATASOURCE)
        .query("label_values(rankskew_node_ranks, job_id)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
