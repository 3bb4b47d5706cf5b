"""Serves a simulated fleet on one socket."""

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from exporter.simulate.fleet import CLUSTER, Fleet, fleet_app
from exporter.simulate.plan import JobPlan


def serve(plans: Sequence[JobPlan], directory: Path, listening: socket.socket) -> None:
    """Serve the jobs of *plans* on *listening* until SIGTERM or SIGINT."""
    fleet = Fleet(plans, directory)
    title = described(plans)
    host, port = listening.getsockname()[:2]
    print(how_to_scrape(title, f"http://{host}:{port}"), flush=True)
    config = uvicorn.Config(fleet_app(fleet, title), log_level="warning", access_log=False)
    asyncio.run(uvicorn.Server(config).serve([listening]))


def described(plans: Sequence[JobPlan]) -> str:
    """Return how large the fleet of *plans* is, in words."""
    nodes, ranks = sum(plan.nodes for plan in plans), sum(plan.ranks for plan in plans)
    return f"{len(plans)} jobs with {ranks} ranks on {nodes} nodes, all of them simulated"


def how_to_scrape(title: str, url: str) -> str:
    """Return what the user needs to know to scrape the fleet at *url*."""
    return (
        f"{title}: {url}/\n"
        "Add to the configuration of a Prometheus that has the rules (rankskew files):\n\n"
        "scrape_configs:\n"
        "  - job_name: rankskew\n"
        f"    http_sd_configs: [{{url: {url}/sd}}]\n\n"
        f'Every series has the label cluster="{CLUSTER}". Ctrl-C ends the simulation.'
    )
