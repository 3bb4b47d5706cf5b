"""Is what is said of a planted fault right? The first that is said counts: it goes to the pager."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.causes.causes_job import LATE_RANK

HEALTHY: Final = "none"
UNKNOWN: Final = "unknown"
SERIES: Final = "rankskew_late_cause_info"
# The causes that are right; those with a slash have their detail too.
RIGHT: Final[dict[str, Sequence[str]]] = {
    "hog": ["cpu/run_queue"],
    "quota": ["cpu"],
    "disk": ["input"],
    "network": ["input", "code/socket"],
    "workers": ["input"],
    "tokens": ["uneven_batches"],
    "gc": ["gc"],
    "checkpoint": ["extra_duties", "storage"],
    "line": ["code"],
    "sleep": ["code"],
    "lock": ["code"],
    "slow_worker": ["input"],
    "slow_mount": ["input"],
    "decode": ["code"],
}
# Right beside it with all CPUs busy: who computes waits for a CPU as long as it runs, or longer.
RIGHT_WHEN_BUSY: Final[dict[str, Sequence[str]]] = {
    "decode": ["cpu"],
    "gc": ["cpu"],
    "workers": ["cpu"],
}
# The details that are right for these, told beside the score.
DETAILS: Final[dict[str, Sequence[str]]] = {
    "quota": ["throttled"],
    "line": ["sleep"],
    "sleep": ["sleep"],
    "lock": ["lock"],
    "slow_worker": ["worker_sleep"],
    "slow_mount": ["mount", "storage"],
    "decode": ["running"],
}


@dataclass(frozen=True, slots=True)
class Said:
    """A cause that was told of *rank*, *seconds* after it became late; all as text."""

    rank: str
    cause: str
    seconds: float
    detail: str = ""
    sentence: str = ""


@dataclass(slots=True)
class Heard:
    """What was told of one planted fault: the *first* cause of each rank, and by each alert.

    *true_of_others* are ranks without the planted fault that were late all the same, for the cause
    that is told of them.
    """

    first: list[Said] = field(default_factory=list)
    alerts: list[Said] = field(default_factory=list)
    true_of_others: set[str] = field(default_factory=set)

    def hear(self, said: Iterable[Said]) -> None:
        """Keep what is said of ranks of which nothing was said before."""
        known = {each.rank for each in self.first}
        self.first.extend(each for each in said if each.rank not in known)

    def hear_alerts(self, said: Iterable[Said]) -> None:
        """Keep the first alert of each rank that tells a cause."""
        known = {each.rank for each in self.alerts}
        self.alerts.extend(each for each in said if each.rank not in known)


def said_in(text: str, job_id: str, seconds: float) -> list[Said]:
    """Return the causes in the exporter's page *text* of a job."""
    return [
        Said(
            sample.labels["rank"],
            sample.labels["cause"],
            seconds,
            sample.labels.get("detail", ""),
            sample.labels.get("sentence", ""),
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == SERIES and sample.labels.get("job_id") == job_id
    ]


def said_by(alerts: Sequence[dict[str, Any]], job_id: str, seconds: float) -> list[Said]:
    """Return the causes that firing *alerts* of Prometheus tell of a job."""
    labels = (each["labels"] for each in alerts if each["state"] == "firing")
    return [
        Said(each.get("rank", ""), each["cause"], seconds)
        for each in labels
        if each.get("job_id") == job_id and each.get("cause")
    ]


def outcome(planted: str, heard: Heard, *, busy: bool = False) -> str:
    """Return `right`, `unknown`, `wrong` or `silent`.

    Wrong is what must never be: a cause that was not planted, a rank that was not late. With all
    CPUs *busy*, that they are is as true for some, and others than the planted rank may be late.
    """
    said = [each for each in (*heard.first, *heard.alerts) if each.rank not in heard.true_of_others]
    if planted == HEALTHY:
        return "wrong" if said else "right"
    if not said:
        return "silent"
    causes = [*RIGHT[planted], *(RIGHT_WHEN_BUSY.get(planted, []) if busy else [])]
    judged = [each.rank == str(LATE_RANK) and _judged(causes, each) for each in said]
    if False in judged:
        return "wrong"
    return "unknown" if None in judged else "right"


def _judged(right: Sequence[str], said: Said) -> bool | None:
    """Return whether it is right; None where nothing is claimed."""
    if said.cause == UNKNOWN:
        return None
    if not said.detail:  # An alert tells none.
        return said.cause in [each.partition("/")[0] for each in right]
    return said.cause in right or f"{said.cause}/{said.detail}" in right


def row(
    planted: str, run: int, heard: Heard, finding: dict[str, Any], *, busy: bool
) -> dict[str, Any]:
    """Return a row of the result; *finding* is what `diagnose` says of the late rank."""
    first = _first_of(heard.first, heard)
    alert = _first_of(heard.alerts, heard)
    return {
        "planted": planted,
        "busy": busy,
        "run": run,
        "outcome": outcome(planted, heard, busy=busy),
        "rank": first.rank,
        "cause": first.cause,
        "detail": first.detail,
        "detail right": first.detail in DETAILS.get(planted, [first.detail]),
        "after": round(first.seconds, 1),
        "sentence": first.sentence,
        "alert": alert.cause,
        "alert after": round(alert.seconds, 1),
        "diagnose": finding.get("cause"),
        "diagnose detail": finding.get("detail"),
        "others": ", ".join(
            f"rank {each.rank}: {each.cause}"
            for each in heard.first
            if each.rank in heard.true_of_others
        ),
        "line": next((line.get("place") for line in finding.get("lines") or []), None),
    }


def _first_of(said: Sequence[Said], heard: Heard) -> Said:
    mine = (each for each in said if each.rank not in heard.true_of_others)
    return next(mine, Said("", "", 0.0))
