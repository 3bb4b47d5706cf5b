"""The node dashboard: its GPUs, the ranks on it, and its host."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as models

from dashboards.node.figures import figures, tables
from dashboards.node.gpus import errors, heat, links, work
from dashboards.node.host import host
from dashboards.node.slow import slow
from dashboards.shared.board import board, filled
from dashboards.shared.panels import DATASOURCE
from dashboards.shared.variables import NODE, cluster_variable, instance_variable


def node_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of one node."""
    node = (
        board(
            "node", "One node: its GPUs, the ranks on it, its links, its errors and its host.", NODE
        )
        .with_variable(cluster_variable())
        .with_variable(instance_variable())
        .with_variable(_gpu_variable())
    )
    rows = {
        "Work and memory": work(),
        "Heat, power and clocks": heat(),
        "Links": links(),
        "Errors": errors(),
        "Host": (*host(), *slow()),
    }
    return filled(node, (*figures(), *tables()), rows)


def _gpu_variable() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("gpu")
        .label("GPU")
        .datasource(DATASOURCE)
        .query(f"label_values(rankskew_gpu_up{{{NODE}}}, gpu)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NUMERICAL_ASC)
        .multi(True)
        .include_all(True)
        # Also matches a GPU that is expected but no longer listed: its label is empty.
        .all_value(".*")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )
