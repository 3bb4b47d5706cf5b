"""`rankskew simulate`: serve a simulated fleet."""

import argparse
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exporter.collectors.catalog import COLLECTORS
from exporter.commands.arguments import Parser, whole_positive
from exporter.errors import UsageError
from exporter.listeners.sockets import open_tcp
from exporter.scrape.levels import ALL
from exporter.settings import collector_names
from fleet_simulator.faults import KINDS, parse
from fleet_simulator.plan import TOUR_GPUS, JobPlan, equal_jobs, tour

FLAG: Final = "--listen-address"
GPUS: Final = 8
ENDS: Final = (signal.SIGINT, signal.SIGTERM)
EXAMPLES: Final = """\
rankskew simulate
rankskew simulate --nodes 64 --gpus 8 --fault thermal:node=7,gpu=3 --fault loader:node=2,after=2m"""


def parser() -> Parser:
    """Return the parser of the command."""
    found = Parser(
        prog="rankskew simulate",
        description="Serve a simulated fleet over HTTP, to see the dashboards and try the alerts "
        'without a GPU. Everything on it is labelled cluster="simulated". Without --nodes, one '
        "small job shows each fault.",
        epilog=f"faults:\n{_kinds()}",
        examples=EXAMPLES,
    )
    found.add_argument(
        FLAG, default="127.0.0.1:9919", help="where to listen (default: %(default)s)"
    )
    found.add_argument(
        "--series.detail",
        dest="detail",
        metavar="COLLECTOR,COLLECTOR",
        type=_collectors,
        default=frozenset(),
        help="collectors of which all series are shown, or 'all', as the exporter's flag; the "
        "lower rows of the dashboards need it (default: none)",
    )
    found.add_argument("--nodes", type=whole_positive, help="number of nodes in the fleet")
    found.add_argument(
        "--gpus",
        type=whole_positive,
        help=f"GPUs per node (default: {GPUS}; {TOUR_GPUS} in the tour)",
    )
    found.add_argument(
        "--jobs", type=whole_positive, default=1, help="number of equal jobs (default: 1)"
    )
    found.add_argument(
        "--fault",
        metavar="KIND:node=I,gpu=J,after=30s",
        action="append",
        default=[],
        help="a fault from the list below, on a node and GPU (default: 0), after a time (default: "
        "five minutes before the start); may be given several times",
    )
    return found


def run(arguments: Sequence[str]) -> int:
    """Serve until interrupted."""
    options = parser().parse_args(arguments)
    plans = fleet_plans(options)
    listening = open_tcp(options.listen_address, FLAG)
    # Imported here: --help needs no web server.
    from fleet_simulator.serve import serve

    # A large fleet takes a while to begin, and may be interrupted or ended then too.
    for number in ENDS:
        signal.signal(number, signal.default_int_handler)
    # Blocked until the directory is one that is removed at the end.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    with suppress(KeyboardInterrupt), TemporaryDirectory(prefix="rankskew-simulate-") as directory:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        serve(plans, Path(directory), listening, options.detail)
    return 0


def fleet_plans(options: argparse.Namespace) -> list[JobPlan]:
    """Return the jobs that *options* ask for; raises UsageError."""
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


def _kinds() -> str:
    return "\n".join(f"  {kind.name:12}{kind.about}" for kind in KINDS)
