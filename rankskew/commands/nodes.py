"""`rankskew nodes`: which nodes and GPUs jobs waited for, over weeks, and which are lemons."""

import time
from collections.abc import Sequence
from typing import Final

from exporter.commands.arguments import Parser
from exporter.errors import StartError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble
from rankskew.commands.servers import add_access, add_moment, add_prometheus, patient
from rankskew.nodes.document import nodes_document, nodes_json
from rankskew.nodes.read import read_fleet
from rankskew.report.document import as_markdown, as_text
from rankskew.report.times import DAY_SECONDS, show

MOST_WEEKS: Final = 520
EXAMPLES: Final = """\
rankskew nodes --prometheus http://prometheus:9090
rankskew nodes --weeks 8 --json | jq '.nodes[] | select(.verdict == "lemon").name'"""
EPILOG: Final = """\
The status is 0 if the table is printed, and 2 if Prometheus cannot tell (no answer, nothing
recorded in the period), or for wrong usage."""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew nodes",
        description="Say which nodes and GPUs jobs waited for, how often for the hours that they "
        "were used, and which are late more often than chance allows.",
        epilog=EPILOG,
        examples=EXAMPLES,
    )
    add_prometheus(options)
    options.add_argument(
        "--weeks",
        type=float,
        default=4.0,
        help="how far to look back (default: %(default)g)",
    )
    add_moment(options)
    options.add_argument("--all", action="store_true", help="print all nodes, not only 20")
    form = options.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    form.add_argument("--json", action="store_true", help="print one JSON document: docs/nodes.md")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print the table; raises StartError with a sentence if Prometheus cannot tell."""
    options = parser().parse_args(arguments)
    if not 0 < options.weeks <= MOST_WEEKS:
        parser().error(f"--weeks must be more than 0 and at most {MOST_WEEKS}")
    end = time.time() if options.at is None else options.at
    begin = max(0.0, end - options.weeks * 7 * DAY_SECONDS)
    try:
        fleet = read_fleet(patient(options), (begin, end), options.cluster)
    except Trouble as trouble:
        raise StartError(str(trouble)) from trouble
    if not fleet.nodes:
        raise StartError(
            f"nothing was recorded of nodes from {show(begin)} to {show(end)} UTC; the rules of "
            "nodes.yaml do that once an hour, and rankskew files DIR writes them"
        )
    if options.json:
        print(as_document("nodes", nodes_json(fleet)))
    else:
        document = nodes_document(fleet, options.all)
        print(as_markdown(document) if options.markdown else as_text(document))
    return 0
