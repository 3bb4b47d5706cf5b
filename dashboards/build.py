"""Write every dashboard to dashboards/json: `python -m dashboards.build [--check]`."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.detail import say_what_it_needs
from dashboards.fleet.dashboard import fleet_dashboard
from dashboards.job.dashboard import job_dashboard
from dashboards.node.dashboard import node_dashboard
from dashboards.rank.dashboard import rank_dashboard
from dashboards.self.dashboard import self_dashboard

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


def rendered(builder: Dashboard) -> str:
    """Return a dashboard as the JSON to commit.

    The SDK leaves panels without an id and rows with 0; Grafana 12 drops such panels when it
    migrates a dashboard, so they are numbered here, those of collapsed rows too.
    """
    dashboard = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    dashboard["schemaVersion"] = SCHEMA_VERSION
    panels = [p for outer in dashboard["panels"] for p in (outer, *(outer.get("panels") or ()))]
    for number, panel in enumerate(panels, start=1):
        panel["id"] = number
        say_what_it_needs(panel)
    return json.dumps(dashboard, indent=2, sort_keys=True) + "\n"


def texts() -> Mapping[str, str]:
    """Return the content of every file in dashboards/json."""
    return {name: rendered(build()) for name, build in DASHBOARDS.items()}


def stale() -> list[str]:
    """Return the names of files that are missing, outdated or left over."""
    wanted = texts()
    committed = {path.name: path.read_text(encoding="utf-8") for path in JSON.glob("*.json")}
    return sorted(n for n in {*wanted, *committed} if wanted.get(n) != committed.get(n))


def main() -> int:
    """Write the files, or with --check print which ones differ; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    if not parser.parse_args().check:
        JSON.mkdir(exist_ok=True)
        for name, text in texts().items():
            (JSON / name).write_text(text, encoding="utf-8")
        return 0
    if names := stale():
        print(f"stale: {', '.join(names)}; run python -m dashboards.build", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
