"""Write every dashboard to dashboards/json: `python -m dashboards.build [--check]`."""

import json
import sys
from pathlib import Path
from typing import Final

from dashboards.fleet import fleet_dashboard
from dashboards.job import job_dashboard
from dashboards.node import node_dashboard
from dashboards.rank import rank_dashboard
from dashboards.self import self_dashboard
from generators.files import write_or_check

JSON: Final = Path(__file__).parent / "json"

# A new dashboard is a file in this directory and a line here.
DASHBOARDS: Final = {
    "fleet.json": fleet_dashboard,
    "job.json": job_dashboard,
    "node.json": node_dashboard,
    "self.json": self_dashboard,
    "rank.json": rank_dashboard,
}


def main() -> int:
    """Write the files, or with --check print which ones differ; return the exit status."""
    texts = {
        JSON / name: json.dumps(build(), indent=2, sort_keys=True) + "\n"
        for name, build in DASHBOARDS.items()
    }
    return write_or_check(texts, "make docs", set(JSON.glob("*.json")) - texts.keys())


if __name__ == "__main__":
    sys.exit(main())
