"""What grafana/dashboard-linter and Grafana's migrations ask of a dashboard."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.panels import RUNBOOKS_URL, STAGE_COLOURS
from rank_probe.stages import STAGES
from tests.dashboards.dashboard_files import JSON_FILES, RULES, load, panels, targets

every_dashboard = pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)


def test_there_are_dashboards() -> None:
    """The rules below are checked on something."""
    assert JSON_FILES


@every_dashboard
def test_ids_are_unique_and_positive(path: Path) -> None:
    """Grafana 12 drops panels without an id of their own when it migrates a dashboard."""
    ids = [panel["id"] for panel in load(path)["panels"]]

    assert min(ids) >= 1
    assert len(ids) == len(set(ids))


@every_dashboard
def test_dashboard_has_a_fixed_identity(path: Path) -> None:
    """Links survive an update: the uid is fixed, the file classic, the schema Grafana 10's."""
    dashboard = load(path)

    assert dashboard["uid"] == f"rankskew-{path.stem}"
    assert "rankskew" in dashboard["tags"]
    assert 39 <= dashboard["schemaVersion"] <= 41
    assert dashboard["editable"] is False
    assert "apiVersion" not in dashboard


@every_dashboard
def test_data_source_is_a_variable(path: Path) -> None:
    """The dashboard works with any Prometheus: every query goes through the variable."""
    dashboard = load(path)
    first = dashboard["templating"]["list"][0]
    used = [panel["datasource"] for panel in panels(path)]
    used += [target["datasource"] for panel in panels(path) for target in panel["targets"]]
    used += [v["datasource"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    used += [annotation["datasource"] for annotation in dashboard["annotations"]["list"]]

    assert (first["name"], first["label"], first["type"]) == (
        "datasource",
        "Data source",
        "datasource",
    )
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in used)


@every_dashboard
def test_query_variables_follow_the_time_range(path: Path) -> None:
    """A job of last week is offered when last week is shown (refresh 2)."""
    variables = [v for v in load(path)["templating"]["list"] if v["type"] == "query"]

    assert [v["refresh"] for v in variables] == [2] * len(variables)
    assert all(v["label"] for v in variables)


@every_dashboard
def test_every_panel_explains_itself(path: Path) -> None:
    """Title, description, unit and at least one query stand on every panel."""
    for panel in panels(path):
        assert panel["title"]
        assert len(panel["description"]) > 40, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


@every_dashboard
def test_panels_do_not_overlap(path: Path) -> None:
    """Every panel has its own place on the 24 columns."""
    places = [panel["gridPos"] for panel in load(path)["panels"]]

    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert not [pair for pair in combinations(places, 2) if _overlap(*pair)]


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


@every_dashboard
def test_only_panels_of_every_grafana_since_10(path: Path) -> None:
    """Time series, stat and table are drawn by every Grafana that is in use."""
    assert {panel["type"] for panel in panels(path)} <= {"timeseries", "stat", "table"}


def test_raw_rates_use_the_rate_interval() -> None:
    """A fixed window is too short for somebody's scrape interval."""
    windows = [
        window
        for target in targets()
        for window in re.findall(r"\b(?:rate|increase|irate)\([^\[]*\[([^\]]+)\]", target.expr)
    ]

    assert windows
    assert set(windows) == {"$__rate_interval"}


def test_every_series_is_of_the_chosen_job() -> None:
    """No panel mixes jobs: each query names the job, itself or in what it is joined with."""
    assert [t for t in targets() if 'job_id="$job_id"' not in t.expr] == []


def test_stages_have_one_colour_each() -> None:
    """Every stage has a colour and no two share one."""
    assert set(STAGE_COLOURS) == set(STAGES)
    assert len(set(STAGE_COLOURS.values())) == len(STAGES)


def test_runbook_link_is_where_the_alerts_point() -> None:
    """Dashboard and alerts send the reader to the same place."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    alerts: list[dict[str, Any]] = [r for group in groups for r in group["rules"] if "alert" in r]

    assert alerts
    assert all(a["annotations"]["runbook_url"].startswith(RUNBOOKS_URL) for a in alerts)
    assert all(load(path)["links"][0]["url"] == RUNBOOKS_URL for path in JSON_FILES)
