"""`rankskew diagnose --compare`: its options, and what it prints."""

import argparse
import sys
import time
from typing import Final

from exporter.commands.arguments import Parser, interval
from exporter.errors import UsageError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble, base_url
from rankskew.client.prometheus import Prometheus
from rankskew.commands.servers import access
from rankskew.compare.choose import compare_recorded, compare_traces
from rankskew.compare.comparison import CANNOT_TELL
from rankskew.compare.report import EXIT_STATUS, as_json, as_markdown, as_text
from rankskew.replay.traces import read_traces

DEFAULT_WINDOW: Final = "10m"


def add_compare(options: Parser) -> None:
    """Add --compare and --window."""
    options.add_argument(
        "--compare",
        metavar="A..B",
        help="say instead what a change between A and B did, with an interval: two times such as "
        "14:05..14:20 (UTC), periods 13:50/14:05..14:20/14:40, or job:OLD..job:NEW; with --trace "
        "times of the run, 10m..12m, or ranges of steps, 100-400..500-900. Exit status: 0 better "
        "or no worse, 1 worse, 2 cannot tell",
    )
    options.add_argument(
        "--window",
        metavar="DURATION",
        type=interval,
        help=f"with --compare: how long before A and after B is compared (default: "
        f"{DEFAULT_WINDOW})",
    )


def run_compare(options: argparse.Namespace) -> int:
    """Print the comparison that *options* ask for; return the exit status.

    Raises UsageError for options that do not go with it.
    """
    _refuse(options)
    window_seconds = interval(DEFAULT_WINDOW) if options.window is None else options.window
    try:
        if options.trace is not None:
            runs = read_traces([options.trace])
            found = compare_traces(runs, options.compare, window_seconds, options.job)
        else:
            found = compare_recorded(
                Prometheus(base_url(options.prometheus), access=access(options)),
                options.compare,
                window_seconds,
                time.time(),
                options.job,
                options.cluster,
            )
    except Trouble as trouble:
        if options.json:
            print(as_document("diagnose-compare", {"verdict": CANNOT_TELL, "why": str(trouble)}))
        print(f"rankskew: {trouble}", file=sys.stderr)
        return EXIT_STATUS[CANNOT_TELL]
    if options.json:
        print(as_json(found))
    else:
        print(as_markdown(found) if options.markdown else as_text(found))
    return EXIT_STATUS[found.verdict]


def _refuse(options: argparse.Namespace) -> None:
    if options.at is not None or options.since is not None:
        raise UsageError("--compare has its own times; leave out --at and --since")
    if options.prometheus is None and options.trace is None:
        raise UsageError("--compare needs --prometheus or --trace: only those have a history")
    if options.trace is not None and options.cluster is not None:
        raise UsageError("--cluster needs --prometheus: a trace knows no clusters")
    if options.time_scale != 1.0:
        raise UsageError("--compare takes traces as they are; leave out --time-scale")
