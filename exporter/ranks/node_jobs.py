"""The jobs on this node, with what it remembers of them: its own verdicts, and their starts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from exporter.ranks.jobs import NODE, AgedVerdict, NodeJob, node_jobs
from exporter.ranks.node_judge import NodeJudge
from exporter.ranks.store import RankStore
from exporter.vocabulary.thresholds import Thresholds
from rank_probe.judge.verdict import Verdict
from rank_probe.wire.snapshot import LEVEL_OFF, Snapshot

# A block of steps takes half a minute or more, so the node's verdict changes no faster.
LOOK_SECONDS: Final = 10.0
# A job that dies before its first step and is back within this time is still starting.
RESTART_SECONDS: Final = 300.0


class Start(NamedTuple):
    """A job without a step: since when, when it was last *seen* so, and whether it *is_over*."""

    since: float
    seen: float
    is_over: bool = False


class NodeJobs:
    """Says who is late in each job on this node. Call from the event loop only.

    One instance serves every caller, so all get the same answer. *thresholds* are the operator's.
    """

    def __init__(self, store: RankStore, thresholds: Thresholds | None = None) -> None:
        self._store = store
        self._thresholds = thresholds or Thresholds()
        self._judge = NodeJudge()
        self._verdicts: dict[str, Verdict] = {}
        self._looked: float | None = None
        self._starts: dict[str, Start] = {}

    def now(self) -> list[NodeJob]:
        """Return all jobs with a rank on this node."""
        return self.at(self._store.now())

    def at(self, now: float) -> list[NodeJob]:
        """Return the same at *now*, which is the store's clock."""
        jobs = node_jobs(self._store.ranks(), now, self._thresholds)
        if self._looked is None or now - self._looked >= LOOK_SECONDS:
            self._look(jobs, now)
        self._starts = {
            job_id: start
            for job_id, start in self._starts.items()
            if now - start.seen <= RESTART_SECONDS
        }
        return [self._remembered(job) for job in jobs]

    def late_stage(self, snapshot: Snapshot) -> str | None:
        """Return the stage in which this node's judge says the rank of *snapshot* is late.

        None if it is not, or if its job has another judge: the rank has that verdict itself.
        """
        if not snapshot.block_steps:  # Nearly every push is of a job with a join.
            return None
        now = self._store.now()
        if self._looked is None or now - self._looked >= LOOK_SECONDS:
            self.at(now)
        verdict = self._verdicts.get(snapshot.job_id)
        late = () if verdict is None else verdict.late
        return next((each.stage for each in late if each.rank == snapshot.rank), None)

    def _look(self, jobs: Sequence[NodeJob], now: float) -> None:
        self._looked = now
        mine = [job for job in jobs if job.needs_own_verdict()]
        self._judge.forget_all_but({job.job_id for job in mine})
        verdicts = {job.job_id: self._judge.judge(job) for job in mine}
        self._verdicts = {job_id: each for job_id, each in verdicts.items() if each is not None}

    def _remembered(self, job: NodeJob) -> NodeJob:
        start = self._start(job)
        if start is None:
            return replace(job, own=self._own(job))
        self._starts[job.job_id] = start
        is_on = job.beating and not start.is_over
        return replace(
            job,
            own=self._own(job),
            starting_seconds=job.now - start.since if is_on else None,
            has_just_started=True,
        )

    def _start(self, job: NodeJob) -> Start | None:
        """Return the start of *job* if it is starting, or was within the last minutes."""
        before = self._starts.get(job.job_id)
        if _is_starting(job):
            is_repeated = before is not None and not before.is_over
            run_seconds = job.run_seconds or 0.0
            since = before.since if before and is_repeated else job.now - run_seconds
            return Start(since, job.now)
        is_over = bool(job.beating)  # Else it may have died, and be back soon.
        return before and (before._replace(is_over=True) if is_over else before)

    def _own(self, job: NodeJob) -> AgedVerdict | None:
        verdict = self._verdicts.get(job.job_id)
        if verdict is None or self._looked is None:
            return None
        return AgedVerdict(verdict, max(job.now - self._looked, 0.0), NODE)


def _is_starting(job: NodeJob) -> bool:
    """Say whether ranks beat here, and none has finished a step; one that is off counts none."""
    snapshots = [rank.snapshot for rank in job.beating]
    return bool(snapshots) and not any(each.steps or each.level == LEVEL_OFF for each in snapshots)
