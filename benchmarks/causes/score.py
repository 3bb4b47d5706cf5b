"""Scores the cause reported for a planted fault: the first report counts, as it pages.

With all CPUs busy, the ranks' own records show whether one was late because it had no CPU.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.causes.causes_job import DIARY_FILE, LATE_RANK, RANKS
from benchmarks.report import Row
from devstack.load import samples_on
from generators.markdown import table

HEALTHY: Final = "none"
UNKNOWN: Final = "unknown"
SERIES: Final = "rankskew_late_cause_info"
# The right causes of each planted fault, some with a detail after a slash.
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
# Also right with all CPUs busy: a busy rank then waits for a CPU at least as long as it runs.
RIGHT_WHEN_BUSY: Final[dict[str, Sequence[str]]] = {
    "decode": ["cpu"],
    "gc": ["cpu"],
    "workers": ["cpu"],
}
# An incident ends at this excess over the peers' time, and a cause accounts for half of it.
LATE: Final = 0.03
HALF: Final = 0.5
# A rank must have been late for this long before the report.
TRUE_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class Said:
    """A cause that was reported for *rank*, *seconds* after it became late."""

    rank: str
    cause: str
    seconds: float
    detail: str = ""
    sentence: str = ""


@dataclass(slots=True)
class Heard:
    """The reports on one planted fault: the *first* cause of each rank, and that of each alert.

    *true_of_others* are ranks without the planted fault that were late all the same, for the
    reported cause.
    """

    first: list[Said] = field(default_factory=list)
    alerts: list[Said] = field(default_factory=list)
    true_of_others: set[str] = field(default_factory=set)


def add_new(heard: list[Said], said: Iterable[Said]) -> None:
    """Add to *heard* what is *said* of ranks that are not in it yet."""
    known = {each.rank for each in heard}
    heard.extend(each for each in said if each.rank not in known)


def said_in(page: bytes, job_id: str, seconds: float) -> list[Said]:
    """Return the causes on the exporter's *page* of a job."""
    return [
        Said(each["rank"], each["cause"], seconds, each["detail"], each["sentence"])
        for each, _ in samples_on(page, SERIES)
        if each["job_id"] == job_id
    ]


def said_by(alerts: Sequence[dict[str, Any]], job_id: str, seconds: float) -> list[Said]:
    """Return the causes in the labels of Prometheus's firing *alerts* for a job."""
    labels = (each["labels"] for each in alerts if each["state"] == "firing")
    return [
        Said(each.get("rank", ""), each["cause"], seconds)
        for each in labels
        if each.get("job_id") == job_id and each.get("cause")
    ]


def outcome(planted: str, heard: Heard, *, busy: bool = False) -> str:
    """Return `right`, `unknown`, `wrong` or `silent`.

    Wrong must never happen: a cause that was not planted, or a rank that was not late. With all
    CPUs *busy*, a lack of CPU is also right for some faults, and other ranks may be late too.
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
    """Return whether the cause is right; None if it is unknown."""
    if said.cause == UNKNOWN:
        return None
    if not said.detail:  # An alert has none.
        return said.cause in [each.partition("/")[0] for each in right]
    return said.cause in right or f"{said.cause}/{said.detail}" in right


def row(planted: str, run: int, heard: Heard, *, busy: bool) -> Row:
    """Return a row of the result: the first report, and whether it is right."""
    first, alert = (
        next((each for each in said if each.rank not in heard.true_of_others), Said("", "", 0.0))
        for said in (heard.first, heard.alerts)
    )
    others = (each for each in heard.first if each.rank in heard.true_of_others)
    return {
        "planted": planted,
        "busy": busy,
        "run": run,
        "outcome": outcome(planted, heard, busy=busy),
        "rank": first.rank,
        "cause": first.cause,
        "detail": first.detail,
        "after": round(first.seconds, 1),
        "sentence": first.sentence,
        "alert": alert.cause,
        "alert after": round(alert.seconds, 1),
        "others": ", ".join(f"rank {each.rank}: {each.cause}" for each in others),
    }


class Work(NamedTuple):
    """What a rank did in a step: for how many seconds it *worked*, and *waited* for a CPU."""

    worked: float
    waited: float


def read(folder: Path, since: float, until: float) -> Mapping[int, Work]:
    """Return by rank the mean work of its steps between two times of the monotonic clock."""
    found = {}
    for rank in range(RANKS):
        lines = (folder / f"{DIARY_FILE}{rank}").read_text().splitlines()
        steps = [tuple(map(float, line.split())) for line in lines if line.count(" ") == 2]
        within = [Work(worked, waited) for at, worked, waited in steps if since <= at <= until]
        if within:
            found[rank] = Work(*map(statistics.fmean, zip(*within, strict=True)))
    return found


def is_true(said: Said, work: Mapping[int, Work]) -> bool:
    """Return whether what is *said* is true of a rank without the planted fault.

    It worked longer than its peers; if it is said to lack a CPU, that is at least half the excess.
    """
    own = work.get(int(said.rank))
    peers = [each for rank, each in work.items() if rank not in (int(said.rank), LATE_RANK)]
    if own is None or not peers:
        return False
    usual = Work(*map(statistics.median, zip(*peers, strict=True)))
    more = own.worked - usual.worked
    if more <= LATE * usual.worked:
        return False
    is_cpu = said.cause == "cpu" and own.waited - usual.waited >= HALF * more
    return is_cpu or said.cause == UNKNOWN


def true_of_others(said: Iterable[Said], folder: Path, began: float) -> set[str]:
    """Return the ranks, other than the planted one, for which everything that is *said* is true.

    Their steps in the TRUE_SECONDS before a report decide; *began* is when listening began.
    """
    found = [each for each in said if each.rank != str(LATE_RANK)]
    wrong = {
        each.rank
        for each in found
        if not is_true(
            each, read(folder, began + each.seconds - TRUE_SECONDS, began + each.seconds)
        )
    }
    return {each.rank for each in found} - wrong


def table_of(result: Row) -> str:
    """Return a row for each cause that was really planted, with the first report on it."""
    found = [row for row in result["rows"] if "outcome" in row]
    runs: dict[tuple[bool, str], list[Row]] = {}
    for row in found:
        runs.setdefault((row["busy"], row["planted"]), []).append(row)
    cells = [
        (
            f"{planted.replace('_', ' ')}{', all CPUs busy' if busy else ''}",
            _named(each[0]),
            _after(each),
            _outcomes(each),
        )
        for (busy, planted), each in runs.items()
    ]
    header = ("planted", "what it says first, in the first run", "after, median", "cause")
    said = _counted(found, False)
    said = said[0].upper() + said[1:]
    return f"{said}; with all CPUs busy, {_counted(found, True)}.\n\n{table(header, cells)}"


def _after(runs: list[Row]) -> str:
    seconds = [row["after"] for row in runs if row["cause"]]
    return f"{statistics.median(seconds):.0f} s" if seconds else ""


def _outcomes(runs: list[Row]) -> str:
    counted = Counter(row["outcome"] for row in runs)
    return ", ".join(
        f"{count} {'**wrong**' if outcome == 'wrong' else outcome}"
        for outcome, count in counted.most_common()
    )


def _counted(found: list[Row], is_busy: bool) -> str:
    outcomes = [row["outcome"] for row in found if row["busy"] == is_busy]
    right, wrong = outcomes.count("right"), outcomes.count("wrong")
    return f"the first cause is right in {right} of {len(outcomes)} and wrong in {wrong}"


def _named(row: Row) -> str:
    if not row["cause"]:
        return "nothing"
    detail = f" ({row['detail']})" if row["detail"] else ""
    said = f"rank {row['rank']}: {row['cause']}{detail}".replace("_", " ")
    return f"{said}: {row['sentence']}" if row["sentence"] else said
