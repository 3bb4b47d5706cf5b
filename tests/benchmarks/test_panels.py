"""What benchmarks/panels.py asks Prometheus, and when it fails."""

from typing import Any

import pytest

from benchmarks.panels import (
    LIMIT_SECONDS,
    POINTS,
    SLOWEST,
    arguments,
    choices,
    failures,
    fleet,
    queries,
    slowest,
    substituted,
)
from fleet_simulator.command import fleet_plans, parser
from fleet_simulator.training import Training

BOARD = {
    "panels": [
        {
            "title": "Row",
            "panels": [
                {"title": "In", "maxDataPoints": 60, "targets": [{"refId": "B", "expr": "b"}]}
            ],
        },
        {"title": "Now", "targets": [{"refId": "A", "expr": "a", "instant": True}]},
    ],
    "annotations": {"list": [{"name": "Alerts", "expr": 'c{job_id="$job_id"}'}]},
}


def row(board: str, query: str, seconds: float) -> dict[str, Any]:
    """Return what was measured of a query."""
    return {"dashboard": board, "query": query, "seconds": seconds}


def test_collapsed_panels_and_annotations_are_asked_too() -> None:
    """A query is asked as Grafana would: over the range, or for now."""
    found = queries("job", BOARD, {"job_id": "sim"})

    assert [(query.name, query.expr, query.instant, query.points) for query in found] == [
        ("In B", "b", False, 60),
        ("Now A", "a", True, POINTS),
        ("annotation Alerts", 'c{job_id="sim"}', False, POINTS),
    ]


def test_variables_are_replaced_and_label_replace_is_left_alone() -> None:
    """A variable without a value is an error, not a query without results."""
    expr = 'label_replace(a{job_id="$job_id"}, "b", "$1", "c", "(.+)")[$__rate_interval]'

    assert substituted(expr, choices(8, 4, 15.0)) == (
        'label_replace(a{job_id="sim-0"}, "b", "$1", "c", "(.+)")[60s]'
    )
    with pytest.raises(KeyError):
        substituted("$other", choices(8, 4, 15.0))


def test_the_chosen_rank_is_late() -> None:
    """The dashboards have something to show: the job and its rank are where a fault is planted."""
    asked = arguments(["--nodes", "32"])
    plans = fleet_plans(parser().parse_args(fleet(asked.nodes, asked.gpus, asked.jobs)))
    late = {plan.job_id: Training(plan).phase(0.0).late for plan in plans}
    chosen = choices(asked.gpus, asked.jobs, asked.interval)

    assert int(chosen["rank"]) in late[chosen["job_id"]]


def test_slowest_queries_of_each_dashboard_are_kept() -> None:
    """Each dashboard has its slowest queries, the worst first, and what all take together."""
    rows = [row("job", str(number), number / 10) for number in range(10)]
    found = slowest([*rows, row("self", "x", 3.0)])

    assert [each["query"] for each in found] == ["9", "8", "7", "6", "x"]
    assert len(found) == SLOWEST + 1
    assert found[0]["together, s"] == pytest.approx(4.5)


def test_slow_query_is_a_failure() -> None:
    """A panel that nobody wants to wait for is named."""
    rows = [row("job", "Late ranks A", LIMIT_SECONDS), row("self", "Errors", LIMIT_SECONDS + 0.1)]

    assert failures(rows) == ["self, Errors: 2.1 s"]
