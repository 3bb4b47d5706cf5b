"""`rankskew simulate`: serve a simulated fleet on one socket."""

import argparse
import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Final

from exporter.collectors.catalog import COLLECTORS
from exporter.commands.arguments import Parser, whole_positive
from exporter.errors import UsageError
from exporter.listeners.sockets import open_tcp
from exporter.scrape.levels import ALL
from exporter.settings import collector_names
from fleet_simulator.faults import KINDS, parse
from fleet_simulator.plan import TOUR_GPUS, JobPlan, equal_jobs, tour
from rankskew.wording import counted

FLAG: Final = "--listen-address"
GPUS: Final = 8
ENDS: Final = (signal.SIGINT, signal.SIGTERM)
EXAMPLES: Final = """\
rankskew simulate
rankskew simulate --nodes 64 --gpus 8 --fault thermal:node=7,gpu=3 --fault loader:node=2,after=2m"""
HOW_TO_SCRAPE: Final = """\
{title}: {url}/
Add to the configuration of a Prometheus that has the rules (rankskew files):

scrape_configs:
  - job_name: rankskew
    http_sd_configs: [{{url: {url}/sd}}]

Every series has the label cluster="simulated". Ctrl-C ends the simulation."""


def parser() -> Parser:
    """Return the parser of the command."""
    faults = fill(" ".join(kind.name for kind in KINDS), 78)
    found = Parser(
        prog="rankskew simulate",
        description="Serve a simulated fleet over HTTP, to see the dashboards and try the alerts "
        'without a GPU. Everything on it is labelled cluster="simulated". Without --nodes, one '
        "small job shows each fault.",
        epilog=f"faults, each in a sentence in docs/simulate.md:\n{faults}",
        examples=EXAMPLES,
    )
    add = found.add_argument
    add(FLAG, default="127.0.0.1:9919", help="where to listen (default: %(default)s)")
    add(
        "--series.detail",
        dest="detail",
        metavar="COLLECTOR,COLLECTOR",
        type=_collectors,
        default=frozenset(),
        help="collectors that expose all their series, or 'all', as the exporter's flag; the "
        "lower rows of the dashboards need it (default: none)",
    )
    add("--nodes", type=whole_positive, help="number of nodes in the fleet")
    gpus = f"GPUs per node (default: {GPUS}; {TOUR_GPUS} in the tour)"
    add("--gpus", type=whole_positive, help=gpus)
    add("--jobs", type=whole_positive, default=1, help="number of equal jobs (default: 1)")
    add(
        "--fault",
        metavar="KIND:node=I,gpu=J,after=T",
        action="append",
        default=[],
        help="a fault from the list below, on a node and GPU (default: 0), after a time (default: "
        "five minutes before the start); may be given several times",
    )
    return found


def run(arguments: Sequence[str]) -> int:
    """Serve until interrupted."""
    options = parser().parse_args(arguments)
    plans = _plans(options)
    listening = open_tcp(options.listen_address, FLAG)
    # A large fleet takes a while to start, and a signal may arrive meanwhile.
    for number in ENDS:
        signal.signal(number, signal.default_int_handler)
    # Blocked until the `with` block is sure to remove the directory.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    with suppress(KeyboardInterrupt), TemporaryDirectory(prefix="rankskew-simulate-") as directory:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        _serve(plans, Path(directory), listening, options.detail)
    return 0


def _plans(options: argparse.Namespace) -> list[JobPlan]:
    if options.nodes is None:
        if options.fault or options.jobs != 1:
            raise UsageError("--fault and --jobs need --nodes; without it, each fault has its job")
        return tour(options.gpus or TOUR_GPUS)
    faults = [parse(fault) for fault in options.fault]
    return equal_jobs(options.nodes, options.gpus or GPUS, options.jobs, faults)


def _collectors(text: str) -> frozenset[str]:
    names = collector_names(text)
    for name in sorted(names - {ALL, *(entry.name for entry in COLLECTORS)}):
        raise argparse.ArgumentTypeError(f"no collector is called {name!r}")
    return names


def _serve(
    plans: Sequence[JobPlan], directory: Path, listening: socket.socket, detail: frozenset[str]
) -> None:
    """Serve the jobs of *plans* on *listening* until SIGTERM or SIGINT."""
    # Imported here: --help needs no web server.
    import uvicorn

    from fleet_simulator.fleet import Fleet, fleet_app

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn would raise the signal again when it stops, and leave the files behind.
            for number in ENDS:
                asyncio.get_running_loop().add_signal_handler(
                    number, self.handle_exit, number, None
                )
            yield

    fleet = Fleet(plans, directory, detail=detail)
    title = described(plans)
    print(HOW_TO_SCRAPE.format(title=title, url=url_of(listening)), flush=True)
    config = uvicorn.Config(fleet_app(fleet, title), log_level="warning", access_log=False)
    asyncio.run(Server(config).serve([listening]))


def url_of(listening: socket.socket) -> str:
    """Return a URL at which *listening* can be reached."""
    host, port = listening.getsockname()[:2]
    if host in ("::", "0.0.0.0"):
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def described(plans: Sequence[JobPlan]) -> str:
    """Return how large the fleet of *plans* is, in words."""
    ranks = counted(sum(plan.ranks for plan in plans), "rank")
    nodes = counted(sum(plan.nodes for plan in plans), "node")
    return f"{counted(len(plans), 'job')} with {ranks} on {nodes}, all of them simulated"
