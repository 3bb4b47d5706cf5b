"""The dashboard of Rankskew itself: whether it can be trusted now, and what it costs."""

from grafana_foundation_sdk.builders import dashboard

from dashboards.self.costs import exporter_costs, rule_costs, versions
from dashboards.self.trust import coverage, figures, freshness, losses
from dashboards.shared.board import board, filled
from dashboards.shared.variables import CLUSTER, cluster_variable


def self_dashboard() -> dashboard.Dashboard:
    """Return the dashboard of the exporters, the probes and the rules."""
    itself = board(
        "self",
        "Rankskew itself: is what it says fresh and complete, and what does that cost.",
        CLUSTER,
    ).with_variable(cluster_variable())
    rows = {
        "Freshness": freshness(),
        "Coverage": coverage(),
        "Lost on the way": losses(),
        "Cost of the exporters": exporter_costs(),
        "Cost of the rules": rule_costs(),
        "Versions": versions(),
    }
    return filled(itself, figures(), rows)
