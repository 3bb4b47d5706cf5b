"""Links from a rank's dashboard to its logs, traces and profiles, in data sources of the user's."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from exporter.errors import UsageError

# The panel of the rank's dashboard that has the links, and its query with the process.
PANEL: Final = "Where it runs"
PROCESS: Final = "B"
# What a query may name, and how Grafana fills it in; the times are ours.
VARIABLES: Final = {
    name: f"${{__field.labels.{name}:percentencode}}"
    for name in ("job_id", "rank", "node", "instance", "pid")
}
TIMES: Final = {name: f"${{{name}}}" for name in ("__from", "__to")}
NAMED: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class ExploreSource:
    """A kind of data source: the title of its link, its type, and how a query of it is asked."""

    title: str
    type: str
    field: str
    asked: Mapping[str, str]


# By the option that chooses one.
SOURCES: Final = {
    "logs": ExploreSource("Logs", "loki", "expr", {"queryType": "range"}),
    "traces": ExploreSource("Traces", "tempo", "query", {"queryType": "traceql"}),
    "profiles": ExploreSource(
        "Profiles",
        "grafana-pyroscope-datasource",
        "labelSelector",
        {"queryType": "profile", "profileTypeId": "process_cpu:cpu:nanoseconds:cpu:nanoseconds"},
    ),
}


def with_links(dashboard: str, chosen: Mapping[str, tuple[str, str]]) -> str:
    """Return the rank's *dashboard* with a link for each kind of SOURCES that was *chosen*.

    Each has the UID of a data source, and a query in its language that may name VARIABLES. Raises
    UsageError for another name.
    """
    said = json.loads(dashboard)
    (panel,) = (each for each in said["panels"] if each["title"] == PANEL)
    (target,) = (each for each in panel["targets"] if each["refId"] == PROCESS)
    # The node is what is before the port.
    port = '"node", "$1", "instance", "(.*?)(:[0-9]+)?"'
    target["expr"] = f"label_replace({target['expr']}, {port})"
    links = [
        {"title": SOURCES[kind].title, "url": _url(kind, *given), "targetBlank": True}
        for kind, given in chosen.items()
    ]
    panel["fieldConfig"]["overrides"].append(
        {
            "matcher": {"id": "byFrameRefID", "options": PROCESS},
            "properties": [{"id": "links", "value": links}],
        }
    )
    return json.dumps(said, indent=2, sort_keys=True) + "\n"


def _url(kind: str, uid: str, query: str) -> str:
    source = SOURCES[kind]
    at: dict[str, str] = {"type": source.type, "uid": uid}
    asked: dict[str, Any] = {"refId": "A", "datasource": at, source.field: query, **source.asked}
    times = {"from": "${__from}", "to": "${__to}"}
    text = json.dumps({"a": {"datasource": uid, "queries": [asked], "range": times}})
    parts, end = ["/explore?schemaVersion=1&panes="], 0
    for match in NAMED.finditer(text):
        name = match[1] or match[2]
        if name not in VARIABLES | TIMES:
            known = ", ".join(f"${each}" for each in VARIABLES)
            raise UsageError(f"--{kind}: there is no ${name} for its query, only {known}")
        parts += [quote(text[end : match.start()], safe=""), (VARIABLES | TIMES)[name]]
        end = match.end()
    return "".join([*parts, quote(text[end:], safe="")])
