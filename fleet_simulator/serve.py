"""Serves a simulated fleet on one socket."""

import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn

from fleet_simulator.fleet import CLUSTER, Fleet, fleet_app
from fleet_simulator.plan import JobPlan
from rankskew.wording import counted

EVERYWHERE: Final = ("::", "0.0.0.0")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End when told to; uvicorn would then repeat the signal, and files would stay behind."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def serve(
    plans: Sequence[JobPlan],
    directory: Path,
    listening: socket.socket,
    detail: frozenset[str] = frozenset(),
) -> None:
    """Serve the jobs of *plans* on *listening* until SIGTERM or SIGINT.

    *detail* is that of --series.detail, of each node.
    """
    fleet = Fleet(plans, directory, detail=detail)
    title = described(plans)
    print(how_to_scrape(title, url_of(listening)), flush=True)
    config = uvicorn.Config(fleet_app(fleet, title), log_level="warning", access_log=False)
    asyncio.run(_Server(config).serve([listening]))


def url_of(listening: socket.socket) -> str:
    """Return a URL at which *listening* can be reached."""
    host, port = listening.getsockname()[:2]
    if host in EVERYWHERE:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def described(plans: Sequence[JobPlan]) -> str:
    """Return how large the fleet of *plans* is, in words."""
    ranks = counted(sum(plan.ranks for plan in plans), "rank")
    nodes = counted(sum(plan.nodes for plan in plans), "node")
    return f"{counted(len(plans), 'job')} with {ranks} on {nodes}, all of them simulated"


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
