"""`rankskew top`: watch jobs and their ranks in a terminal."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from exporter.commands.arguments import Parser, add_duration, add_json
from exporter.errors import FAILED, UsageError
from rank_probe.wire.document import as_document
from rankskew.commands.servers import access, add_access, add_sources, exporters, prometheus
from rankskew.top.from_exporter import read_exporters
from rankskew.top.model import FleetStatus, JobStatus

EXAMPLES: Final = """\
rankskew top                                        # the jobs of this node
rankskew top --exporter node1:9917                  # of another; may be given several times
rankskew top --prometheus http://prometheus:9090    # all jobs, with causes and costs
rankskew top --job llama --once                     # the ranks of one job, printed once
rankskew top --json | jq '.jobs[].state'"""


def run(arguments: Sequence[str]) -> int:
    """Show jobs and ranks; 2 if something that was asked does not answer or does not exist."""
    options = parser().parse_args(arguments)
    read = reader(options)
    if sys.stdout.isatty() and not (options.once or options.json):
        from rankskew.top.screen import show

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # The terminal is left as it was.
        show(read, options.interval)
        return 0
    fleet = read()
    if options.json:
        print(as_json(fleet, options.job is not None))
    elif fleet.jobs:
        from rich.console import Console

        from rankskew.top.view import View

        Console(highlight=False).print(View(fleet))
    for trouble in fleet.troubles:
        print(f"rankskew: {trouble}", file=sys.stderr)
    return FAILED if fleet.troubles else 0


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew top",
        description="Watch jobs in a terminal: which rank is late, why, and how many GPUs wait for "
        "it. The most urgent job comes first. A single job, or the one that --job names, is shown "
        "with its ranks, the late ones first. Ctrl-C ends it.",
        examples=EXAMPLES,
    )
    add_sources(options)
    options.add_argument("--job", metavar="JOB_ID", help="show the ranks of this job")
    options.add_argument(
        "--once",
        action="store_true",
        help="print one view and exit, as if stdout is not a terminal; exits 2 if it is incomplete",
    )
    add_json(options, "all jobs, with the ranks of the one that --job names; implies --once")
    add_duration(options, "--interval", "2s", "time between updates")
    add_access(options)
    return options


def reader(options: argparse.Namespace) -> Callable[[], FleetStatus]:
    if options.prometheus is None:
        if options.cluster is not None:
            raise UsageError("--cluster needs --prometheus: an exporter knows no clusters")
        return partial(read_exporters, exporters(options), options.job, access(options))
    from rankskew.top.from_prometheus import read_fleet

    return partial(read_fleet, prometheus(options), options.cluster, options.job)


def as_json(fleet: FleetStatus, with_ranks: bool) -> str:
    """Return *fleet* as one JSON object; the jobs have their ranks if *with_ranks*."""
    said = asdict(fleet) | {"jobs": [_job_as_json(job, with_ranks) for job in fleet.jobs]}
    return as_document("top", said)


def _job_as_json(job: JobStatus, with_ranks: bool) -> dict[str, Any]:
    said = asdict(job)
    rank, stage = job.culprit or (None, None)
    said["culprit"] = None if rank is None else {"rank": rank, "stage": stage}
    if not with_ranks:
        del said["ranks"]
    return said
