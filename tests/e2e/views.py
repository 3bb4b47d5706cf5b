"""What page, top, diagnose and alert say of each job of the tour, in words that compare."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.live import states
from rank_probe.judge.verdict import MILD, UNSYNCED
from rankskew.client.fetch import Trouble
from rankskew.diagnose.from_exporter import read_exporters as diagnose_exporters
from rankskew.diagnose.from_prometheus import read_prometheus as diagnose_prometheus
from rankskew.diagnose.model import Report
from rankskew.top.from_exporter import read_exporters
from rankskew.top.from_prometheus import read_prometheus
from rankskew.top.model import JobStatus
from tests.e2e.tour import PLACES, Tour

PAGE, ALERT = "page", "alert"
# An exporter cannot know that another one is down.
BLIND: Final = {"down": ("page", "top of exporters", "diagnose of exporters")}
# Which alert says what.
STATE_OF: Final = {
    "RankskewJobHung": states.HUNG,
    "RankskewStraggler": states.STRAGGLER,
    "RankskewSlowNode": states.SLOW_NODE,
}
HELD_UP_BY: Final = re.compile(r"GPUs wait: rank (\d+)")


@dataclass(frozen=True)
class Answer:
    """What a view says: which *ranks* are late, the cause and its detail, the loss, what to do.

    None is what it does not say at all.
    """

    state: str
    ranks: frozenset[int] | None
    cause: tuple[str, str] | None
    gpus_lost: float | None
    first_action: str | None = None


# By view.
Answers = Mapping[str, Answer]


def page(fleet: Tour, job_id: str) -> Answer:
    """Return what the page of the node with the late rank says."""
    verdict = fleet.live(job_id)
    late = [
        each
        for each in verdict["late"]
        if each["costs_enough"] and each["kind"] not in (MILD, UNSYNCED)
    ]
    ranks = {int(each["rank"]) for each in late}
    if verdict["state"] == states.HUNG:
        held = HELD_UP_BY.search(verdict["sentence"])
        ranks = {int(held[1])} if held else set()
    cause = late[0]["cause"] if late else None
    return Answer(
        verdict["state"],
        frozenset(ranks),
        (cause["cause"], cause["detail"]) if cause else None,
        sum(verdict["gpus_lost"].values()),
        cause["first_action"] if cause else None,
    )


def of_top(job: JobStatus) -> Answer:
    """Return what `rankskew top` shows of *job*."""
    late = [each for each in job.late if each.is_called_late]
    ranks = {each.rank for each in late}
    if job.state == states.HUNG:
        ranks = {job.culprit[0]} if job.culprit else set()
    cause = late[0].cause if late and job.state != states.HUNG else None
    return Answer(
        job.state,
        frozenset(ranks),
        (cause.cause, cause.detail) if cause else None,
        job.gpus_lost or 0.0,
        cause.first_action if cause else None,
    )


def of_report(report: Report) -> Answer:
    """Return what `rankskew diagnose` says."""
    first = next((each for each in report.findings if each.ranks), None)
    cause = first.cause if first is not None else None
    is_about_ranks = first is not None and (cause or report.state == states.HUNG)
    return Answer(
        report.state,
        frozenset(first.ranks) if first is not None and is_about_ranks else frozenset(),
        (cause.cause, cause.detail) if cause else None,
        report.loss.gpus if report.loss is not None else 0.0,
        first.first if first is not None and cause else None,
    )


def of_alerts(fleet: Tour, job_id: str, alerts: list[dict[str, Any]]) -> Answer | None:
    """Return what the alert on the ranks of the job says; None if there is none."""
    for alert in alerts:
        labels = alert["labels"]
        state = STATE_OF.get(labels["alertname"])
        if labels.get("job_id") == job_id and state is not None:
            cause = labels.get("cause")
            rank = labels.get("rank")
            ranks = frozenset({int(rank)}) if rank else frozenset[int]()
            if state == states.SLOW_NODE:
                ranks = _of_node(job_id, labels["instance"])
            return Answer(state, ranks, (cause, "") if cause else None, None)
    return None


def _of_node(job_id: str, instance: str) -> frozenset[int]:
    plan = PLACES[job_id]
    place = int(instance.removeprefix("sim-").partition(":")[0]) - plan.first_node
    return frozenset(range(place * plan.gpus, (place + 1) * plan.gpus))


def ask_all(fleet: Tour) -> dict[str, dict[str, Answer]]:
    """Return what each view says of each job now; raises Trouble if one gets no answer in time."""
    alerts = fleet.prometheus.active_alerts()
    tops = {job.job_id: job for job in read_prometheus(fleet.prometheus.url).jobs}
    found = {}
    for job_id, plan in PLACES.items():
        urls = [fleet.url(plan.first_node + node) for node in range(plan.nodes)]
        seen = read_exporters(urls)
        if not seen.jobs:
            raise Trouble("; ".join(seen.troubles))
        if job_id not in tops:  # Its scrapes came too late.
            raise Trouble(f"Prometheus knows no job {job_id} now")
        (top,) = seen.jobs
        said = {
            PAGE: page(fleet, job_id),
            "top of exporters": of_top(top),
            "top of Prometheus": of_top(tops[job_id]),
            "diagnose of exporters": of_report(diagnose_exporters(urls, job_id)),
            "diagnose of Prometheus": of_report(
                diagnose_prometheus(fleet.prometheus.url, None, job_id, None)
            ),
        }
        told = of_alerts(fleet, job_id, alerts)
        found[job_id] = said | ({ALERT: told} if told is not None else {})
    return found


def sighted(job_id: str, answers: Answers) -> Answers:
    """Return the answers of the views that can know the state of the job."""
    blind = BLIND.get(job_id, ())
    return {view: answer for view, answer in answers.items() if view not in blind}
