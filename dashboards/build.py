"""Write every dashboard to dashboards/json: `python -m dashboards.build [--check]`."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.detail import say_what_it_needs
from dashboards.fleet import fleet_dashboard
from dashboards.job.dashboard import job_dashboard
from dashboards.node import node_dashboard
from dashboards.rank import rank_dashboard
from dashboards.self import self_dashboard
from generators.files import write_or_check

# That of Grafana 10: newer servers migrate it when they load it, older ones cannot migrate down.
SCHEMA_VERSION: Final = 39
JSON: Final = Path(__file__).parent / "json"

# A new dashboard is a folder in this directory and a line here.
DASHBOARDS: Final = {
    "fleet.json": fleet_dashboard,
    "job.json": job_dashboard,
    "node.json": node_dashboard,
    "self.json": self_dashboard,
    "rank.json": rank_dashboard,
}


def rendered(builder: Dashboard | dict[str, Any]) -> str:
    """Return a dashboard as the JSON to commit.

    The SDK leaves panels without an id and rows with 0; Grafana 12 drops such panels when it
    migrates a dashboard, so they are numbered here, those of collapsed rows too.
    """
    if isinstance(builder, dict):
        return json.dumps(builder, indent=2, sort_keys=True) + "\n"
    dashboard = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    dashboard["schemaVersion"] = SCHEMA_VERSION
    panels = [p for outer in dashboard["panels"] for p in (outer, *(outer.get("panels") or ()))]
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
        say_what_it_needs(panel)
    return json.dumps(dashboard, indent=2, sort_keys=True) + "\n"


def main() -> int:
    """Write the files, or with --check print which ones differ; return the exit status."""
    texts = {JSON / name: rendered(build()) for name, build in DASHBOARDS.items()}
    return write_or_check(texts, "make dashboards", set(JSON.glob("*.json")) - texts.keys())


if __name__ == "__main__":
    sys.exit(main())
