"""A rank's dashboard leads to its logs, traces and profiles, if a data source is chosen."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from dashboards.build import JSON
from rankskew.__main__ import main

RANK = (JSON / "rank.json").read_text()
LABELS = {"job_id": "llama 7b", "rank": "2", "node": "gpu-12", "instance": "n:1", "pid": "4242"}
TIMES = {"__from": "1704177030000", "__to": "1704180180000"}


def written(directory: Path, *options: str) -> str:
    """Return the rank's dashboard as `rankskew files` writes it with *options*."""
    assert main(["files", str(directory), *options]) == 0
    return (directory / "dashboards" / "rank.json").read_text()


def process(dashboard: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the query of the process, and its links."""
    [panel] = [each for each in json.loads(dashboard)["panels"] if each["title"] == "Where it runs"]
    [expr] = [each["expr"] for each in panel["targets"] if "{{pid}}" in each["legendFormat"]]
    [ref] = [each["refId"] for each in panel["targets"] if "{{pid}}" in each["legendFormat"]]
    return expr, [
        link
        for each in panel["fieldConfig"]["overrides"]
        if each["matcher"] == {"id": "byFrameRefID", "options": ref}
        for value in each["properties"]
        if value["id"] == "links"
        for link in value["value"]
    ]


def opened(url: str) -> Any:
    """Return the panes that Explore gets from *url* once Grafana has filled it in."""

    def value(match: re.Match[str]) -> str:
        name = match[1].removeprefix("__field.labels.").removesuffix(":percentencode")
        return quote((LABELS | TIMES)[name], safe="")

    parts = urlsplit(re.sub(r"\$\{(.+?)\}", value, url))
    assert parts.path == "/explore"
    asked = parse_qs(parts.query)
    assert asked["schemaVersion"] == ["1"]
    return json.loads(asked["panes"][0])


def test_without_a_data_source_there_are_no_links(tmp_path: Path) -> None:
    """Nobody sees a link that leads nowhere."""
    assert written(tmp_path) == RANK
    assert process(RANK)[1] == []


@pytest.mark.parametrize(
    ("option", "type_", "title", "query", "field", "asked"),
    [
        (
            "--logs",
            "loki",
            "Logs",
            '{node="$node"} |~ "${job_id}.*rank $rank$"',
            "expr",
            '{node="gpu-12"} |~ "llama 7b.*rank 2$"',
        ),
        (
            "--traces",
            "tempo",
            "Traces",
            '{ resource.rank = "$rank" && resource.pid = $pid }',
            "query",
            '{ resource.rank = "2" && resource.pid = 4242 }',
        ),
        (
            "--profiles",
            "grafana-pyroscope-datasource",
            "Profiles",
            '{service_name="train", instance="$instance"}',
            "labelSelector",
            '{service_name="train", instance="n:1"}',
        ),
    ],
)
def test_link_asks_the_data_source_about_the_rank(
    tmp_path: Path, option: str, type_: str, title: str, query: str, field: str, asked: str
) -> None:
    """Explore opens with the query of the user, of this rank, in the time range of the page."""
    [link] = process(written(tmp_path, option, "uid1", query))[1]
    pane = opened(link["url"])["a"]

    assert (link["title"], link["targetBlank"]) == (title, True)
    assert pane["datasource"] == "uid1"
    assert pane["range"] == {"from": TIMES["__from"], "to": TIMES["__to"]}
    [sent] = pane["queries"]
    assert sent["datasource"] == {"type": type_, "uid": "uid1"}
    assert sent[field] == asked


def test_all_three_can_be_chosen(tmp_path: Path) -> None:
    """They are links of one line, the process, whose node is the host of its exporter."""
    chosen = [each for kind in ("logs", "traces", "profiles") for each in (f"--{kind}", "u", "{}")]
    expr, links = process(written(tmp_path, *chosen))

    assert [each["title"] for each in links] == ["Logs", "Traces", "Profiles"]
    assert expr == (
        f'label_replace({process(RANK)[0]}, "node", "$1", "instance", "(.*?)(:[0-9]+)?")'
    )


def test_unknown_name_in_a_query_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written then."""
    assert main(["files", str(tmp_path / "out"), "--logs", "uid", '{host="$host"}']) == 2
    assert capsys.readouterr().err == (
        "rankskew: --logs: there is no $host for its query, only $job_id, $rank, $node, $instance, "
        "$pid\n"
    )
    assert not (tmp_path / "out").exists()
