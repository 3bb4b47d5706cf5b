"""`rankskew report`: look back over weeks of alerts, or over a job."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from exporter.commands.arguments import Parser, interval
from exporter.errors import StartError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import selector
from rankskew.commands.servers import add_access, add_moment, add_prometheus, patient
from rankskew.render import render
from rankskew.report.history import PastSeries, grid, rule_interval
from rankskew.report.incidents import incidents_document, read_all_incidents
from rankskew.report.job import read_job
from rankskew.report.job_document import job_document

EXAMPLES: Final = """\
rankskew report --incidents --since 14d                # what fired, and what it cost
rankskew report --job llama --prometheus http://prometheus:9090
rankskew report --job llama --json | jq .gpu_hours_lost"""
EPILOG: Final = """\
The status is 0 if the report is printed, and 2 if Prometheus cannot tell (no answer, no such job,
no data in the period), or for wrong usage."""


def parser() -> Parser:
    """Return the parser of its arguments."""
    options = Parser(
        prog="rankskew report",
        description="Look back: over the alerts of some weeks, with what they cost (--incidents), "
        "or over one job, with what it lost (--job).",
        epilog=EPILOG,
        examples=EXAMPLES,
    )
    subject = options.add_mutually_exclusive_group(required=True)
    subject.add_argument("--incidents", action="store_true", help="what fired in the period")
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
    span = max(0.0, end - options.since), end
    try:
        if options.incidents:
            times = grid(*span, rule_interval(prometheus))
            matchers = selector(cluster=options.cluster)
            fired = read_all_incidents(PastSeries(prometheus), times, matchers, options.gap)
            document = incidents_document(fired, times, show_all=options.all)
            said = as_document("report-incidents", asdict(fired))
        else:
            job = read_job(prometheus, options.job, options.cluster, span, options.gap)
            document, said = job_document(job), as_document("report-job", asdict(job))
    except Trouble as trouble:
        raise StartError(str(trouble)) from trouble
    print(said if options.json else render(document, markdown=options.markdown))
    return 0
