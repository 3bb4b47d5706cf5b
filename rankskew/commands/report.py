"""`rankskew report`: look back over weeks of alerts, or over a job."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from exporter.commands.arguments import Parser, interval
from exporter.errors import StartError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import Prometheus
from rankskew.commands.servers import add_access, add_moment, add_prometheus, patient
from rankskew.nodes.document import nodes_json, worst_nodes
from rankskew.nodes.read import read_fleet
from rankskew.report.confirmations import default_file, read
from rankskew.report.document import Document, as_markdown, as_text
from rankskew.report.job import read_job
from rankskew.report.job_document import job_document, job_json
from rankskew.report.shadow import read_shadow, shadow_document, shadow_json
from rankskew.report.times import Span, show

EXAMPLES: Final = """\
rankskew report --shadow --since 14d                       # which alerts would have paged
rankskew report --shadow --markdown > shadow.md
rankskew report --job llama --prometheus http://prometheus:9090
rankskew report --job llama --json | jq .gpu_hours_lost"""
EPILOG: Final = """\
The status is 0 if the report is printed, and 2 if Prometheus cannot tell (no answer, no such job,
no data in the period), or for wrong usage."""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew report",
        description="Look back: over all alerts of some weeks, with what they cost and how many "
        "were right (--shadow), or over one job, with what it lost (--job).",
        epilog=EPILOG,
        examples=EXAMPLES,
    )
    subject = options.add_mutually_exclusive_group(required=True)
    subject.add_argument(
        "--shadow", action="store_true", help="the alerts of the period as they would have been"
    )
    subject.add_argument("--job", metavar="JOB_ID", help="this job, running or finished")
    add_prometheus(options)
    options.add_argument(
        "--since",
        metavar="DURATION",
        type=interval,
        default="14d",
        help="how far to look back (default: %(default)s)",
    )
    add_moment(options)
    options.add_argument(
        "--gap",
        metavar="DURATION",
        type=interval,
        default="10m",
        help="an alert that is back after less is the same incident (default: %(default)s)",
    )
    options.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        default=default_file(),
        help="what rankskew confirm has written (default: %(default)s)",
    )
    options.add_argument("--all", action="store_true", help="print all incidents, not only 40")
    form = options.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    form.add_argument("--json", action="store_true", help="print one JSON document: docs/report.md")
    add_access(options)
    return options


def run(arguments: Sequence[str]) -> int:
    """Print a report; raises StartError with a sentence if Prometheus cannot tell."""
    options = parser().parse_args(arguments)
    prometheus = patient(options)
    end = time.time() if options.at is None else options.at
    make = _shadow if options.shadow else _job
    try:
        document, said = make(options, prometheus, (max(0.0, end - options.since), end))
    except Trouble as trouble:
        raise StartError(str(trouble)) from trouble
    if options.json:
        print(as_document("report-shadow" if options.shadow else "report-job", said))
    else:
        print(as_markdown(document) if options.markdown else as_text(document))
    return 0


def _shadow(
    options: argparse.Namespace, prometheus: Prometheus, span: Span
) -> tuple[Document, dict[str, Any]]:
    said = read(options.file)
    shadow = read_shadow(prometheus, span, said, options.gap, options.cluster)
    if not shadow.coverage.spans:
        raise StartError(
            f"no rules of Rankskew were evaluated from {show(span[0])} to "
            f"{show(span[1])} UTC; rankskew files DIR writes them"
        )
    document, found = shadow_document(shadow, options.all), shadow_json(shadow)
    fleet = read_fleet(prometheus, span, options.cluster)
    if fleet.nodes:  # Recorded once an hour, since a release.
        *sections, limits = document.sections
        document = replace(document, sections=[*sections, worst_nodes(fleet), limits])
        found["nodes"] = nodes_json(fleet)
    return document, found


def _job(
    options: argparse.Namespace, prometheus: Prometheus, span: Span
) -> tuple[Document, dict[str, Any]]:
    said = read(options.file)
    job = read_job(prometheus, options.job, options.cluster, span, said, options.gap)
    return job_document(job), job_json(job)
