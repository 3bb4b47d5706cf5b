"""What `rankskew top` shows: jobs, their ranks, and what went wrong while asking for them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from exporter.causes.model import UNKNOWN as CAUSE_UNKNOWN
from exporter.live import states
from exporter.live.causes import CauseView, cause_sentence
from exporter.live.sentences import LateView
from exporter.vocabulary import words
from rank_probe.judge.verdict import NODE, Change, Together, settled
from rankskew.wording import few

# Not known: rules or an exporter of another version.
UNKNOWN: Final = "?"
STATE_WORDS: Final = states.WORDS | {UNKNOWN: UNKNOWN}
# The most urgent first.
STATES: Final = tuple(STATE_WORDS)

NO_RANK: Final = (
    "No rank has reported yet; start a job with: torchrun --nproc-per-node 8 -m rank_probe train.py"
)

# So many ranks of a job get a row.
MOST_RANKS: Final = 20
# What is not known comes after what is wrong.
URGENCY: Final = {UNKNOWN: 2} | {name: state.urgency for name, state in words.STATES.items()}


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank; what is not known is None.

    *stage_seconds* are means per step; *node* is the host's name or the address of its exporter.
    """

    rank: int
    node: str | None = None
    local_rank: str | None = None
    gpu: str | None = None
    gpu_uuid: str | None = None
    pid: int | None = None
    stage_seconds: Mapping[str, float] | None = None
    late: LateView | None = None
    stage: str | None = None
    stage_elapsed_seconds: float | None = None
    report_age_seconds: float | None = None
    last_step_age_seconds: float | None = None
    silent: bool = False
    finished: bool = False

    @property
    def own_seconds(self) -> float | None:
        """Time per step in which it did not wait."""
        if not self.stage_seconds:
            return None
        return sum(s for stage, s in self.stage_seconds.items() if stage != "sync")

    @property
    def wait_seconds(self) -> float | None:
        """Time per step in which it waited for others."""
        return self.stage_seconds.get("sync", 0.0) if self.stage_seconds else None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job; what is not known is None, and *sentence* is empty.

    *late* are the late ranks, the costliest first. *since_seconds* is how long the costliest has
    been late, or for how long the job hangs. *culprit* is the rank and stage to look at. *alert* is
    raised if the state lasts; only exporters know it, *changes*, and the sets of ranks that became
    late *together*. *ranks* are those of *ranks_seen* that are worth a row, in that order.
    """

    job_id: str
    cluster: str = ""
    state: str = UNKNOWN
    sentence: str = ""
    details: Sequence[str] = ()
    first_action: str | None = None
    world_size: int | None = None
    gpus_lost: float | None = None
    lost_by_kind: Mapping[str, float] = field(default_factory=dict)
    cost_per_hour: float | None = None
    late: Sequence[LateView] = ()
    culprit: tuple[int, str] | None = None
    cause: str | None = None
    since_seconds: float | None = None
    slowdown: float | None = None
    changes: Sequence[Change] = ()
    together: Sequence[Together] = ()
    steps: int | None = None
    step_seconds: float | None = None
    coverage: float | None = None
    reason: str | None = None
    alert: str | None = None
    ranks_seen: int | None = None
    ranks: Sequence[Rank] = ()


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """All jobs that *source* knows, the most urgent first, and *troubles* in sentences."""

    source: str
    jobs: Sequence[JobStatus] = ()
    troubles: Sequence[str] = ()
    timestamp_seconds: float | None = None

    @property
    def focus(self) -> JobStatus | None:
        """The job whose ranks are shown: the only one, or the one that was asked for."""
        return self.jobs[0] if len(self.jobs) == 1 else None


def in_order(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Return *jobs* as they are shown: hung, by GPUs lost, not judged, healthy, ended."""
    return sorted(jobs, key=_urgency)


def _urgency(job: JobStatus) -> tuple[int, float, int, str, str]:
    lost = job.gpus_lost or 0.0
    return URGENCY[job.state], -lost, STATES.index(job.state), job.cluster, job.job_id


def no_such_job(job_id: str, jobs: Sequence[JobStatus]) -> str:
    """Say that *job_id* is not among *jobs*, and which are."""
    return f"There is no job {job_id!r}; there are: {few(sorted({job.job_id for job in jobs}))}."


def several_jobs(names: Sequence[str]) -> str:
    """Say that one of several jobs must be named."""
    return f"There are {len(names)} jobs; name one with --job: {few(names)}."


# ---- What a late rank says of its job ------------------------------------------------------------


def costliest_first(late: Iterable[LateView]) -> list[LateView]:
    """Return *late* ranks, the costliest first; those that are called late precede the others."""
    order = settled(late, lambda each: (each.gpus_lost,))
    return sorted(order, key=lambda each: not each.is_called_late)


def explained(job: JobStatus) -> JobStatus:
    """Return *job* with its costliest late rank as the culprit, why that is, and what to do first.

    Another rank, or none, holds up a job that hangs.
    """
    first = next(iter(job.late), None)
    if job.state == states.HUNG or first is None or not first.is_called_late:
        return job
    job = replace(
        job, culprit=(first.rank, first.stage), since_seconds=first.late_for_seconds or None
    )
    those = [each for each in job.late if each.is_called_late and each.kind == NODE]
    cause = cause_of_node(those) if first.kind == NODE else first.cause
    if cause is None:
        return job
    is_said = any(cause.sentence in said for said in job.details)
    return replace(
        job,
        cause=words.cause_in_short(cause.cause, cause.detail),
        details=job.details if is_said else (_cause_text(cause), *job.details),
        first_action=cause.first_action or job.first_action,
    )


def cause_of_node(late: Iterable[LateView]) -> CauseView | None:
    """Return the most frequent cause of a node's *late* ranks, as its costliest rank has it.

    The alert on a slow node, in late.yaml, names the same cause.
    """
    by_cost = sorted(late, key=lambda each: -each.gpus_lost)
    causes = [each.cause for each in by_cost if each.cause is not None]
    often = Counter(each.cause for each in causes)
    return max(causes, key=lambda each: often[each.cause], default=None)


def _cause_text(cause: CauseView) -> str:
    said = cause_sentence(cause).removesuffix(".")
    share = "" if cause.cause == CAUSE_UNKNOWN else f" ({cause.share:.0%} of the delay)"
    return f"{said}{share}."


# ---- Which ranks get a row -----------------------------------------------------------------------


def newest(ranks: Iterable[Rank]) -> list[Rank]:
    """Return each rank once, where it reported last: a dead process is known for a while."""

    def age(rank: Rank) -> tuple[bool, float]:
        seconds = rank.report_age_seconds
        return rank.silent, float("inf") if seconds is None else seconds

    found: dict[int, Rank] = {}
    for rank in ranks:
        if rank.rank not in found or age(rank) < age(found[rank.rank]):
            found[rank.rank] = rank
    return [found[number] for number in sorted(found)]


def worth_a_row(job: JobStatus) -> list[Rank]:
    """Return the ranks of *job* to show.

    Late ranks come first, in the job's order, then those that hold it up. The others follow by
    number, or by their own time per step, the slowest first, if there are too many for all.
    """
    is_huge = len(job.ranks) > MOST_RANKS
    places = {each.rank: place for place, each in enumerate(job.late)}

    def place(rank: Rank) -> tuple[int, int, float, int]:
        slow = (rank.own_seconds or 0.0) if is_huge else 0.0
        return _group(rank, job.state), places.get(rank.rank, len(places)), -slow, rank.rank

    return sorted(job.ranks, key=place)[:MOST_RANKS]


def holds_up(rank: Rank, state: str) -> bool:
    """Say whether a hung job may wait for *rank*; one that never stepped may be an evaluator."""
    if state != states.HUNG or rank.finished or rank.last_step_age_seconds is None:
        return False
    return rank.silent or rank.stage != "sync"


def _group(rank: Rank, state: str) -> int:
    if rank.late is not None and rank.late.is_called_late:
        return 0
    if holds_up(rank, state) or rank.silent:
        return 1
    return 2 if rank.late is not None else 3
