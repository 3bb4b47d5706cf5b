"""Synthetic training jobs, scraped: what Prometheus would hold, as input series for promtool."""

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from exporter.skew import Charges, charge
from rank_probe.stages import PHASE_OF

# Share of a rank's own time that each stage takes.
STAGE_SHARES = {"optimizer": 0.08, "other": 0.07, "data": 0.1, "forward": 0.25, "backward": 0.5}
START_SECONDS = 5.0
# In the first step rank 0 compiles what the others then read from its cache.
COMPILE_SECONDS = 6.0
RESTART_PAUSE_SECONDS = 20.0
# The ranks tell each other what they cost every so often.
JOIN_SECONDS = 2.0
NEVER = float("inf")


@dataclass(frozen=True)
class Fault:
    """*rank* takes *ratio* of a usual step longer in *stage*, every *every* steps.

    *rank* None is another rank in each step, drawn at random.
    """

    rank: int | None
    stage: str
    ratio: float
    every: int = 1
    start_seconds: float = 0.0
    end_seconds: float = NEVER


@dataclass(frozen=True)
class Job:
    """A synchronous job; *group_work* is the work of each peer group relative to the first.

    Rank 0 cannot be scraped from *unseen_seconds* for 45 seconds: its exporter restarts. Nodes are
    scraped one after the other, evenly over *scrape_seconds*. With *join* the ranks count what
    they cost each other.
    """

    ranks: int = 4
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    seconds: float = 240.0
    busy_seconds: float = 0.5
    communication_ratio: float = 0.06
    stage_noise: float = 0.03
    common_noise: float = 0.03
    static_spread: float = 0.005
    group_work: tuple[float, ...] = (1.0,)
    slow_together_seconds: float = NEVER
    restart_seconds: float = NEVER
    unseen_seconds: float = NEVER
    missing: int = 0
    sync_measured: bool = True
    scrape_seconds: float = 15.0
    ranks_per_node: int = 8
    join: bool = False

    def phase(self, rank: int) -> float:
        """Return how long before an evaluation the node of *rank* was scraped, in seconds."""
        nodes = -(-self.ranks // self.ranks_per_node)
        return self.scrape_seconds * (rank // self.ranks_per_node) / nodes

    def group(self, rank: int) -> int:
        """Return the peer group of *rank*: equal sizes, ranks in order."""
        return rank * len(self.group_work) // self.ranks

    def is_seen(self, rank: int, now: float) -> bool:
        """Return whether a scrape at *now* finds *rank*."""
        return not (rank == 0 and self.unseen_seconds <= now < self.unseen_seconds + 45)


@dataclass(frozen=True)
class Step:
    """One step of all ranks, ended by the release; *number* counts from the last start."""

    number: int
    end_seconds: float
    stages: list[dict[str, float]]
    sync: list[float]

    @property
    def busy(self) -> list[float]:
        """Own time of each rank: the step without the wait."""
        return [sum(stages.values()) for stages in self.stages]


def simulate(job: Job) -> list[Step]:
    """Run *job* to its end and return all steps."""
    draw = random.Random(job.seed)
    spread = [
        {stage: 1 + draw.gauss(0, job.static_spread) for stage in STAGE_SHARES}
        for _ in range(job.ranks)
    ]
    steps: list[Step] = []
    now, number, restarted = START_SECONDS, 0, False
    while now < job.seconds:
        if now >= job.restart_seconds and not restarted:
            now, number, restarted = now + RESTART_PAUSE_SECONDS, 0, True
        stages = _own_times(job, draw, spread, now, number)
        wire = job.busy_seconds * job.communication_ratio * (1 + abs(draw.gauss(0, 0.1)))
        busy = [sum(of_rank.values()) for of_rank in stages]
        length = max(busy) + wire
        now, number = now + length, number + 1
        steps.append(Step(number, now, stages, [length - own for own in busy]))
    return steps


def _own_times(
    job: Job, draw: random.Random, spread: list[dict[str, float]], now: float, number: int
) -> list[dict[str, float]]:
    common = job.busy_seconds * (1 + draw.gauss(0, job.common_noise))
    common *= 1.5 if now >= job.slow_together_seconds else 1
    times = []
    for rank in range(job.ranks):
        usual = common * job.group_work[job.group(rank)]
        noise = {stage: max(0.1, 1 + draw.gauss(0, job.stage_noise)) for stage in STAGE_SHARES}
        times.append(
            {s: usual * share * spread[rank][s] * noise[s] for s, share in STAGE_SHARES.items()}
        )
    if number == 0:
        times[0]["forward"] += COMPILE_SECONDS
    for fault in job.faults:
        if fault.start_seconds <= now < fault.end_seconds and number % fault.every == 0:
            late = times[draw.randrange(job.ranks) if fault.rank is None else fault.rank]
            late[fault.stage] = late.get(fault.stage, 0.0) + fault.ratio * job.busy_seconds
    return times


def gpus_lost(steps: list[Step], end_seconds: float, window_seconds: float = 60.0) -> float:
    """Return the GPUs that wait for the slowest rank of each step: the accounting, exact."""
    window = [s for s in steps if end_seconds - window_seconds < s.end_seconds <= end_seconds]
    waited = sum(max(step.busy) * len(step.busy) - sum(step.busy) for step in window)
    return waited / sum(step.busy[0] + step.sync[0] for step in window)


def input_series(job: Job, steps: list[Step], job_id: str = "j") -> list[dict[str, str]]:
    """Return *job* as scraped every *job.scrape_seconds* from pushes up to a second old."""
    draw = random.Random(job.seed)
    series: list[dict[str, str]] = []
    for rank, state in enumerate(states(job, steps)):
        identity = (
            f'job_id="{job_id}",peer_group="g{job.group(rank)}",rank="{rank}",'
            f'instance="node{rank // job.ranks_per_node}:9917"'
        )
        for metric, values in _scraped(job, rank, state, draw).items():
            name, _, labels = metric.rstrip("}").partition("{")
            both = f"{identity},{labels}" if labels else identity
            series.append({"series": f"{name}{{{both}}}", "values": " ".join(values)})
    return series


def states(job: Job, steps: list[Step]) -> list["State"]:
    """Return what each rank's probe pushes; those of *job.missing* have none."""
    charged = _charges(job, steps) if job.join and job.ranks > 1 else []
    return [State(job, steps, rank, charged) for rank in range(job.ranks - job.missing)]


def _charges(job: Job, steps: list[Step]) -> list[Charges]:
    groups = {rank: str(job.group(rank)) for rank in range(job.ranks)}
    return [charge(dict(enumerate(step.stages)), groups) for step in steps]


def _scraped(job: Job, rank: int, state: "State", draw: random.Random) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for scrape in range(int(job.seconds // job.scrape_seconds) + 1):
        now = scrape * job.scrape_seconds
        samples = (
            dict(state.pushed_at(now - job.phase(rank) - draw.random()))
            if job.is_seen(rank, now)
            else {}
        )
        for metric in values.keys() - samples.keys():
            values[metric].append("stale")
        for metric, value in samples.items():
            # As often absent as it was scraped before it appeared.
            values.setdefault(metric, ["_"] * scrape).append(f"{value:.9g}")
    return values


class State:
    """What a rank's probe pushes: its cumulative state as of the last step that it finished."""

    def __init__(self, job: Job, steps: list[Step], rank: int, charged: list[Charges]) -> None:
        self._job = job
        self._rank = rank
        self._steps = steps
        self._ends = [step.end_seconds for step in steps]
        self._sums = _sums(steps, [self._gained(step) for step in steps])
        self._joined = _sums(
            steps, [self._joined_in(step, of) for step, of in zip(steps, charged, strict=False)]
        )

    def _gained(self, step: Step) -> dict[str, float]:
        busy = step.busy[self._rank]
        stages = dict(step.stages[self._rank])
        if self._job.sync_measured:
            stages["sync"] = step.sync[self._rank]
        return {
            "rankskew_steps_total": 1.0,
            "rankskew_busy_seconds_total": busy,
            "rankskew_busy_seconds_squared_total": busy**2,
        } | {
            f'rankskew_stage_seconds_total{{phase="{PHASE_OF[stage]}",stage="{stage}"}}': seconds
            for stage, seconds in stages.items()
        }

    def _joined_in(self, step: Step, charges: Charges) -> dict[str, float]:
        gained = {
            "rankskew_joined_seconds_total": step.busy[self._rank] + step.sync[self._rank],
        }
        gained["rankskew_paced_steps_total"] = float(charges.pacer == self._rank)
        if len(self._job.group_work) > 1:
            gained["rankskew_group_wait_seconds_total"] = charges.unequal[self._rank]
        for stage in step.stages[self._rank]:
            labels = f'{{stage="{stage}"}}'
            cost = charges.caused.get((self._rank, stage), 0.0)
            gained[f"rankskew_wait_caused_seconds_total{labels}"] = cost
        return gained

    def pushed_at(self, now: float) -> Iterator[tuple[str, float]]:
        """Yield the samples of the push at *now*; none before the job has started."""
        if now < 0:
            return
        yield "rankskew_world_size", self._job.ranks
        yield "rankskew_rank_finished", 0
        yield f'rankskew_rank_info{{world_size="{self._job.ranks}"}}', 1
        yield "rankskew_heartbeat_timestamp_seconds", now
        done = bisect_right(self._ends, now)
        if not done:
            yield "rankskew_steps_total", 0
            return
        yield from self._sums[done - 1].items()
        yield "rankskew_last_step_timestamp_seconds", self._ends[done - 1]
        if self._job.sync_measured:
            yield "rankskew_sync_floor_seconds", self._floor(done)
        if self._joined:
            yield "rankskew_join_coverage_ratio", 1.0
            joined = bisect_right(self._ends, now // JOIN_SECONDS * JOIN_SECONDS - JOIN_SECONDS)
            if joined:
                yield from self._joined[joined - 1].items()

    def _floor(self, done: int) -> float:
        recent = bisect_right(self._ends, self._ends[done - 1] - 60.0)
        waits = sorted(step.sync[self._rank] for step in self._steps[recent:done])
        return waits[len(waits) // 50]


def _sums(steps: list[Step], gains: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return the counters after each of *steps*, which begin anew with the first of a start."""
    sums: list[dict[str, float]] = []
    for step, gained in zip(steps, gains, strict=False):
        before = sums[-1] if step.number > 1 else {}
        names = before | gained
        sums.append({n: before.get(n, 0.0) + gained.get(n, 0.0) for n in names})
    return sums
