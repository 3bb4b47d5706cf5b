"""`rankskew compare`: what a change did to a job, with an interval."""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json, interval
from exporter.errors import UsageError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble, base_url
from rankskew.client.prometheus import Prometheus
from rankskew.commands.servers import access, add_access
from rankskew.compare.choose import compare_recorded, compare_traces
from rankskew.compare.comparison import CANNOT_TELL, EXIT_STATUS, Comparison
from rankskew.compare.words import comparison_document
from rankskew.render import render
from rankskew.replay.traces import read_traces

EXAMPLES: Final = """\
rankskew compare 14:05..14:20 --prometheus http://prometheus:9090 --job llama
rankskew compare 13:50/14:05..14:20/14:40 --prometheus http://prometheus:9090
rankskew compare job:llama-1..job:llama-2 --prometheus http://prometheus:9090
rankskew compare 100-400..500-900 --trace /scratch/trace"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew compare",
        description="Say what a change between A and B did: how much longer or shorter steps take "
        "since, with a 95 % interval, and whether that is certain. Exit status: 0 better or no "
        "worse, 1 worse, 2 cannot tell.",
        examples=EXAMPLES,
    )
    # So that -40m..-10m is no option.
    options._negative_number_matcher = re.compile(r"-\d")
    options.add_argument(
        "sides",
        metavar="A..B",
        help="two times such as 14:05..14:20 (UTC) or -40m..-10m, periods "
        "13:50/14:05..14:20/14:40, or job:OLD..job:NEW; with --trace times of the run, 10m..12m, "
        "or ranges of steps, 100-400..500-900",
    )
    source = options.add_mutually_exclusive_group(required=True)
    source.add_argument("--prometheus", metavar="URL", help="ask this Prometheus")
    source.add_argument("--trace", metavar="DIR", type=Path, help="compare in this recorded trace")
    options.add_argument("--cluster", help="only this cluster of the Prometheus")
    options.add_argument("--job", metavar="JOB_ID", help="this job; not needed if there is one")
    options.add_argument(
        "--window",
        metavar="DURATION",
        type=interval,
        default="10m",
        help="how long before A and after B is compared (default: %(default)s)",
    )
    formats = options.add_mutually_exclusive_group()
    add_json(formats, "the verdict and all figures; docs/compare.md describes it")
    formats.add_argument("--markdown", action="store_true", help="print Markdown, for a ticket")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a comparison; returns 0 if it is better or no worse, 1 if worse, 2 if unknown."""
    options = parser().parse_args(arguments)
    if options.trace is not None and options.cluster is not None:
        raise UsageError("--cluster needs --prometheus: a trace knows no clusters")
    try:
        found = _compared(options)
    except Trouble as trouble:
        found = Comparison(CANNOT_TELL, str(trouble))
        print(f"rankskew: {trouble}", file=sys.stderr)
        if not options.json:
            return EXIT_STATUS[CANNOT_TELL]
    if options.json:
        print(as_document("compare", asdict(found)))
    else:
        print(render(comparison_document(found), markdown=options.markdown))
    return EXIT_STATUS[found.verdict]


def _compared(options: argparse.Namespace) -> Comparison:
    if options.trace is not None:
        runs = read_traces([options.trace])
        return compare_traces(runs, options.sides, options.window, options.job)
    prometheus = Prometheus(base_url(options.prometheus), access=access(options))
    return compare_recorded(
        prometheus, options.sides, options.window, time.time(), options.job, options.cluster
    )
