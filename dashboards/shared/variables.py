"""The choices at the top of the dashboards, and the selectors that make queries follow them."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from dashboards.shared.panels import DATASOURCE

# What every query of a dashboard carries, by what the dashboard is about. The cluster is a label
# that an operator may or may not add; `.*` also matches series without it.
CLUSTER: Final = 'cluster=~"$cluster"'
JOB: Final = f'{CLUSTER},job_id="$job_id"'
ONE_RANK: Final = f'{JOB},rank="$rank"'
NODE: Final = f'{CLUSTER},instance=~"$instance"'


def datasource_variable() -> dashboard.DatasourceVariable:
    """Return the choice of a Prometheus."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def cluster_variable() -> dashboard.QueryVariable:
    """Return the choice of a cluster, all of them at first."""
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        _variable("cluster", "Cluster", "label_values(rankskew_node_ranks, cluster)")
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def job_variable() -> dashboard.QueryVariable:
    """Return the choice of a job: with or without the probe, running or not."""
    return _variable("job_id", "Job", f"label_values(job:rankskew_state:info{{{CLUSTER}}}, job_id)")


def rank_variable() -> dashboard.QueryVariable:
    """Return the choice of one of the job's ranks."""
    return _variable("rank", "Rank", f"label_values(rankskew_rank_info{{{JOB}}}, rank)").sort(
        models.VariableSort.NUMERICAL_ASC
    )


def instance_variable() -> dashboard.QueryVariable:
    """Return the choice of a node, by the address of its exporter."""
    return _variable(
        "instance", "Node", f"label_values(rankskew_exporter_build_info{{{CLUSTER}}}, instance)"
    )


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(DATASOURCE)
        .query(query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
