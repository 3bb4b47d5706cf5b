"""`rankskew diagnose`: what is wrong with a job, why, and what to do about it."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from exporter.commands.arguments import Parser, add_json
from exporter.errors import FAILED, UsageError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble, base_url
from rankskew.commands.servers import access, add_access, add_moment, add_sources, exporters
from rankskew.diagnose.model import CANNOT_TELL, EXIT_STATUS, CannotTell, Report
from rankskew.diagnose.render import as_json, in_words
from rankskew.render import render

EXAMPLES: Final = """\
rankskew diagnose --prometheus http://prometheus:9090 --job llama
rankskew diagnose --prometheus http://prometheus:9090 --job llama --at 2026-11-23T07:45Z
rankskew diagnose --exporter node1:9917 --exporter node2:9917 --json | jq '.findings[0].first'"""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew diagnose",
        description="Say what is wrong with a job: the loss, each late rank with its stage, line "
        "of code, cause and the evidence for it, what to do in the order of least disturbance, "
        "and what could not be judged. Exit status: 0 balanced, 1 something found, 2 cannot tell.",
        examples=EXAMPLES,
    )
    add_sources(options)
    options.add_argument("--job", metavar="JOB_ID", help="this job; optional if there is only one")
    add_moment(options)
    formats = options.add_mutually_exclusive_group()
    add_json(formats, "the whole report; docs/diagnose.md describes it")
    formats.add_argument("--markdown", action="store_true", help="print Markdown, for a ticket")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a report; returns 0 if the job is balanced, 1 if something is found, else 2."""
    options = parser().parse_args(arguments)
    try:
        report = read(options)
    except (Trouble, CannotTell) as trouble:
        if options.json:
            outcome = {"outcome": CANNOT_TELL, "exit_status": FAILED, "trouble": str(trouble)}
            print(as_document("diagnose", outcome))
        print(f"rankskew: {trouble}", file=sys.stderr)
        return FAILED
    print(as_json(report) if options.json else render(in_words(report), markdown=options.markdown))
    return EXIT_STATUS[report.outcome]


def read(options: argparse.Namespace) -> Report:
    """Return the report that *options* ask for; raises Trouble, CannotTell and UsageError."""
    if options.prometheus is None:
        for name in ("at", "cluster"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} needs --prometheus: only that has a history")
        from rankskew.diagnose.from_exporter import read_exporters

        return read_exporters(exporters(options), options.job, access(options))
    from rankskew.diagnose.from_prometheus import read_prometheus

    url = base_url(options.prometheus)
    return read_prometheus(url, options.cluster, options.job, options.at, access(options))
