"""`rankskew diagnose`: what is wrong with a job, why, and what to do about it."""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from exporter.commands.arguments import Parser, add_json, time_scale
from exporter.errors import FAILED, UsageError
from rankskew.client.fetch import Trouble, base_url
from rankskew.commands.servers import access, add_access, add_moment, add_sources, exporters
from rankskew.diagnose.model import EXIT_STATUS, CannotTell, Report
from rankskew.diagnose.render import as_json, as_markdown, as_text, trouble_as_json

EXAMPLES: Final = """\
rankskew diagnose --prometheus http://prometheus:9090 --job llama
rankskew diagnose --prometheus http://prometheus:9090 --job llama --at 2026-11-23T07:45Z
rankskew diagnose --exporter node1:9917 --exporter node2:9917
rankskew diagnose --trace /scratch/trace --json | jq '.findings[0].first'"""

Read = Callable[[], Report]


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew diagnose",
        description="Say what is wrong with a job: the loss, each late rank with its stage, line "
        "of code, cause and the evidence for it, what to do in the order of least disturbance, "
        "and what could not be judged. Exit status: 0 balanced, 1 something found, 2 cannot tell.",
        examples=EXAMPLES,
    )
    source = add_sources(options)
    source.add_argument("--trace", metavar="DIR", type=Path, help="judge this recorded trace")
    options.add_argument("--job", metavar="JOB_ID", help="this job; not needed if there is one")
    add_moment(options)
    options.add_argument(
        "--time-scale",
        metavar="K",
        type=time_scale,
        default=1.0,
        help="with --trace: make the clock and every stage K times slower, for traces of only a "
        "few seconds (default: 1)",
    )
    formats = options.add_mutually_exclusive_group()
    add_json(formats, "the whole report; docs/diagnose.md describes it")
    formats.add_argument("--markdown", action="store_true", help="print Markdown, for a ticket")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a report; returns 0 if the job is balanced, 1 if something is found, else 2."""
    options = parser().parse_args(arguments)
    read = reader(options)
    try:
        report = read()
    except (Trouble, CannotTell) as trouble:
        if options.json:
            print(trouble_as_json(str(trouble)))
        print(f"rankskew: {trouble}", file=sys.stderr)
        return FAILED
    if options.json:
        print(as_json(report))
    else:
        print(as_markdown(report) if options.markdown else as_text(report))
    return EXIT_STATUS[report.outcome]


def reader(options: argparse.Namespace) -> Read:
    """Return what reads the report; raises UsageError for options that do not go together."""
    if options.prometheus is None:
        for name in ("at", "cluster"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} needs --prometheus: only that has a history")
    if options.trace is None and options.time_scale != 1.0:
        raise UsageError("--time-scale needs --trace")
    if options.trace is not None:
        from rankskew.diagnose.from_trace import read_trace

        return partial(read_trace, options.trace, options.job, options.time_scale)
    if options.prometheus is None:
        from rankskew.diagnose.from_exporter import read_exporters

        return partial(read_exporters, exporters(options), options.job, access(options))
    from rankskew.diagnose.from_prometheus import read

    url = base_url(options.prometheus)
    return partial(read, url, options.cluster, options.job, options.at, access(options))
