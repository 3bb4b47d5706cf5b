"""The grammar of `rank-probe check`, apart from that of `run`, which a training job waits for."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from rank_probe.check.check import check
from rank_probe.check.report import as_json, as_text
from rank_probe.command_line.parser import CommandParser, duration

DESCRIPTION: Final = """\
Post a dry run of a snapshot to the exporter of this node, and say whether a rank
that starts here could report, under which name, and who scrapes the exporter.
The exporter keeps nothing of it. An answer is awaited for up to 4 s."""
EXAMPLES: Final = """\
exit status: 0 if ranks can report, 1 if not, 2 for wrong usage

examples:
  rank-probe check                  # on the node, or at the top of a job script
  rank-probe check --wait 60s       # in a prolog or an init container: until the exporter is up
  rank-probe check --require-scrape --json | jq .warnings
"""


def parser() -> CommandParser:
    """Return the parser of the command's options."""
    options = CommandParser("check", DESCRIPTION, EXAMPLES)
    options.add_argument(
        "--wait",
        metavar="DURATION",
        type=duration,
        default=0,
        help="wait this long, such as 60s or 5m, until ranks can report (default: look once)",
    )
    options.add_argument(
        "--require-scrape",
        action="store_true",
        help="fail if nobody has fetched /metrics in the last 5 minutes, instead of a warning",
    )
    options.add_argument("--json", action="store_true", help="print one JSON document")
    return options


def run(arguments: Sequence[str]) -> int:
    """Print what was found; return 0 if ranks can report, else 1. Raises WrongCommand."""
    options = parser().parse_args(arguments)
    found = check(os.environ, options.wait, options.require_scrape, _say)
    print(as_json(found) if options.json else as_text(found))
    return 0 if found.problem is None else 1


def _say(sentence: str) -> None:
    print(f"rank-probe: {sentence}", file=sys.stderr, flush=True)
