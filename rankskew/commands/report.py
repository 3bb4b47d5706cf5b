"""`rankskew report`: look back over weeks of alerts, or over a job."""

import time
from collections.abc import Sequence
from typing import Final

from exporter.commands.arguments import Parser, interval
from exporter.errors import StartError
from rank_probe.wire.document import as_document
from rankskew.client.fetch import Trouble
from rankskew.client.prometheus import selector
from rankskew.commands.servers import add_access, add_moment, add_prometheus, patient
from rankskew.report.document import as_markdown, as_text
from rankskew.report.history import PastSeries, grid, rule_interval
from rankskew.report.incidents import (
    incidents_document,
    incidents_json,
    read_incidents,
    watched_seconds,
)
from rankskew.report.job import read_job
from rankskew.report.job_document import job_document, job_json
from rankskew.report.times import show

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
            history, times = PastSeries(prometheus), grid(*span, rule_interval(prometheus))
            watched = watched_seconds(history, times)
            if not watched:
                raise StartError(
                    f"no rules of Rankskew were evaluated from {show(span[0])} to {show(span[1])} "
                    "UTC; rankskew files DIR writes them"
                )
            found = read_incidents(history, times, selector(cluster=options.cluster), options.gap)
            document = incidents_document(found, times, watched, options.all)
            said = incidents_json(found, watched)
        else:
            job = read_job(prometheus, options.job, options.cluster, span, options.gap)
            document, said = job_document(job), job_json(job)
    except Trouble as trouble:
        raise StartError(str(trouble)) from trouble
    if options.json:
        print(as_document("report-incidents" if options.incidents else "report-job", said))
    else:
        print(as_markdown(document) if options.markdown else as_text(document))
    return 0
