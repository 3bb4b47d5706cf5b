"""What Grafana asks of a dashboard, and which detail of the exporters its panels need."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dashboards.board import BOARDS
from dashboards.detail import collectors
from exporter.collectors.catalog import COLLECTORS
from exporter.scrape.levels import LEVELS, PARTS
from tests.dashboards.dashboard_files import (
    JSON_FILES,
    everything,
    load,
    metric_names,
    panels,
    targets,
)

every_dashboard = pytest.mark.parametrize("path", JSON_FILES, ids=lambda path: path.stem)


def variables(path: Path) -> dict[str, dict[str, Any]]:
    """Return a dashboard's variables by name."""
    return {variable["name"]: variable for variable in load(path)["templating"]["list"]}


@every_dashboard
def test_dashboard_has_a_fixed_identity(path: Path) -> None:
    """Links survive an update: the uid is fixed, the file classic, the schema Grafana 10's.

    Grafana 12 drops panels without an id of their own when it migrates a dashboard.
    """
    dashboard = load(path)
    ids = [panel["id"] for panel in everything(path)]

    assert path.stem in BOARDS
    assert dashboard["uid"] == f"rankskew-{path.stem}"
    assert 39 <= dashboard["schemaVersion"] <= 41
    assert "apiVersion" not in dashboard
    assert min(ids) >= 1
    assert len(ids) == len(set(ids))


@every_dashboard
def test_data_source_is_a_variable(path: Path) -> None:
    """A dashboard works with any Prometheus data source, with or without `cluster` labels."""
    dashboard = load(path)
    [first, *asked] = dashboard["templating"]["list"]
    used = [asking["datasource"] for panel in panels(path) for asking in (panel, *panel["targets"])]
    used += [each["datasource"] for each in (*asked, *dashboard["annotations"]["list"])]

    assert (first["name"], first["type"]) == ("datasource", "datasource")
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in used)
    # A job of last week is offered when last week is shown.
    assert [each["refresh"] for each in asked] == [2] * len(asked)
    cluster = variables(path)["cluster"]
    assert (cluster["includeAll"], cluster["allValue"]) == (True, ".*")
    assert cluster["current"]["value"] == "$__all"


def test_raw_rates_use_the_rate_interval() -> None:
    """Rates use no fixed window, which would be too short for some scrape intervals."""
    windows = [
        window
        for target in targets()
        for window in re.findall(r"\b(?:rate|increase|irate)\([^\[]*\[([^\]]+)\]", target.expr)
    ]

    assert set(windows) == {"$__rate_interval", "$__range"}


@pytest.mark.parametrize(
    ("variable", "selector"),
    [("cluster", 'cluster=~"$cluster"'), ("job_id", 'job_id="$job_id"'), ("rank", 'rank="$rank"')],
)
def test_every_query_follows_the_choice(variable: str, selector: str) -> None:
    """No panel mixes jobs: each query names what was chosen, or is joined with what does.

    Jobs of one name in two clusters are two jobs: no selector names a job alone.
    """
    boards = {path.stem for path in JSON_FILES if variable in variables(path)}
    # Alerts and events of the whole job stand on the time lines of its ranks, too.
    deaf = [
        t
        for t in targets()
        if t.dashboard in boards
        and selector not in t.expr
        and not (variable == "rank" and t.panel.startswith("annotation"))
    ]

    assert boards
    assert deaf == []
    selectors = [each for t in targets() for each in re.findall(r"\{([^}]*)\}", t.expr)]
    of_jobs = [each for each in selectors if 'job_id="$job_id"' in each]
    assert [each for each in of_jobs if 'cluster=~"$cluster"' not in each] == []


@every_dashboard
def test_columns_of_a_table_have_different_titles(path: Path) -> None:
    """Grafana keys the cells of a row by title: of two equal columns one would show the other."""
    for panel in (panel for panel in panels(path) if panel["type"] == "table"):
        titles = {
            override["matcher"]["options"]: entry["value"]
            for override in panel["fieldConfig"]["overrides"]
            for entry in override["properties"]
            if entry["id"] == "displayName"
        }
        if "Value" in titles:  # What a table with one query calls its value, or else this:
            del titles["Value #A"]

        assert len(titles) == len(set(titles.values())), panel["title"]


# ---- Detail --------------------------------------------------------------------------------------

FLAG = re.compile(r"--series\.detail=([a-z_,0-9]+)")
CORE = {*LEVELS, *PARTS}


@every_dashboard
def test_panel_says_which_detail_it_needs(path: Path) -> None:
    """A panel's description names the flag and the collectors that its detail series need."""
    names = {entry.name for entry in COLLECTORS}
    for each in panels(path):
        read = {name for target in each["targets"] for name in metric_names(target["expr"])}
        detail = {name for name in read - CORE if ":" not in name}  # Rules record the others.
        said = FLAG.findall(each["description"])

        assert not detail or said, (each["title"], detail)
        assert {name for flag in said for name in flag.split(",")} <= names
        assert {collectors()[name] for name in detail} <= set(
            ",".join(said).split(",") if said else ()
        )


def test_first_rows_need_no_detail() -> None:
    """What a person sees first is there by default."""
    for path in JSON_FILES:
        top = [each for each in panels(path) if each["gridPos"]["y"] == 0]

        assert top
        assert "--series.detail" not in json.dumps(top)
