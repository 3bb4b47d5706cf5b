"""The verdict on a simulated job. It is known who is late, so nothing has to be found out."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.evidence.peers import quantiles_of
from fleet_simulator.faults import Scope, Silence
from fleet_simulator.plan import node_name
from fleet_simulator.training import (
    BUSY_SECONDS,
    COMMUNICATION_SECONDS,
    PEER_GROUP,
    RUN_SECONDS,
    STAGE_SHARES,
    Phase,
    Training,
)
from rank_probe.judge.common import together
from rank_probe.judge.verdict import (
    MOST_LATE,
    NO_SYNC,
    NODE,
    PERSISTENT,
    Change,
    Late,
    Verdict,
)

# How often rank 0 judges, and how much its figures, means of the last minute, vary between rounds.
ROUND_SECONDS: Final = 5.0
NOISE: Final = 0.02
UNJUDGED: Final = (Silence.UNJOINED, Silence.STARTING, Silence.OFF)


@dataclass(frozen=True, slots=True)
class RepeatedVerdict:
    """A verdict, also as each rank repeats it in JSON, and when it was made."""

    verdict: Verdict
    json: dict[str, Any]
    judged_seconds: float


class Judged:
    """What the judge of the job says over time; the same on all of its nodes."""

    def __init__(self, training: Training) -> None:
        self._training = training
        plan = training.plan
        self._facts = {rank: {"node": node_name(plan.place(rank)[0])} for rank in range(plan.ranks)}
        self._round: int | None = None
        self._said: RepeatedVerdict | None = None

    def at(self, at: float) -> RepeatedVerdict | None:
        """Return the newest verdict at *at*, in seconds of the simulation; None without a join."""
        number = int(at // ROUND_SECONDS)
        if number != self._round:
            self._round = number
            phase = self._training.phase(at)
            # Without steps there is nothing to judge.
            judged = phase.begins_seconds - 1e-3 if phase.halts else number * ROUND_SECONDS
            verdict = self._verdict(judged)
            self._said = (
                None if verdict is None else RepeatedVerdict(verdict, verdict.to_json(), judged)
            )
        return self._said

    def _verdict(self, at: float) -> Verdict | None:
        training = self._training
        phase = training.phase(at)
        if any(training.has(silence, at) for silence in UNJUDGED):
            return None
        absent = _unseen(phase)
        steps, ranks = training.steps(at), {PEER_GROUP: training.plan.ranks - absent}
        if training.has(Silence.UNTIMED, at):
            return Verdict(steps, ranks, reason=NO_SYNC)
        late = [_late(phase, rank, at) for rank in phase.late]
        late.sort(key=lambda each: -each.gpus_lost)
        draw = random.Random(f"{training.plan.job_id} {self._round}")
        noise = draw.gauss(1, NOISE)
        lost = sum(each.gpus_lost for each in late)
        longest = max((sum(extra.values()) for extra in phase.late.values()), default=0.0)
        rotating = {stage: gpus * noise for stage, gpus in phase.charges.rotating.items()}
        return Verdict(
            step=steps,
            ranks=ranks,
            absent=absent,
            step_seconds=phase.step_seconds * draw.gauss(1, NOISE / 10),
            slowdown=phase.step_seconds / (phase.step_seconds - longest),
            gpus_lost={
                "group": 0.0,
                "persistent": lost * noise,
                "rotating": sum(rotating.values()),
                "common": sum(ranks.values()) * COMMUNICATION_SECONDS / phase.step_seconds,
            },
            rotating=rotating,
            late=tuple(late[:MOST_LATE]),
            together=tuple(together(late, self._facts, self._facts)),
            changes=self._changes(phase, sum(ranks.values()), at),
        )

    def _changes(self, phase: Phase, ranks: int, at: float) -> tuple[Change, ...]:
        """Return that the job became slower; the real judge needs a minute or two to be sure."""
        slower = [fault for fault in phase.faults if fault.kind.slows_all]
        if not slower:
            return ()
        stage = max(phase.of_all, key=lambda stage: phase.of_all[stage])
        onset = max(min(each.begins_seconds for each in slower), -RUN_SECONDS)
        # Of whole steps, whatever makes them longer since then.
        longer = phase.step_seconds / self._training.phase(onset - 1).step_seconds
        return (
            Change(
                peer_group=PEER_GROUP,
                stage=stage,
                ratio=1 + phase.of_all[stage] / (BUSY_SECONDS * STAGE_SHARES[stage]),
                since_seconds=at - onset,
                step_ratio=longer,
                gpus=ranks * (1 - 1 / longer),
            ),
        )


class JoinedFigures:
    """The figures that the ranks have posted for their peers, on whichever node they are."""

    def __init__(self) -> None:
        self._posted: dict[int, Mapping[str, float]] = {}
        self._of_peers: dict[frozenset[int], dict[str, list[float]]] = {}

    def post(self, rank: int, figures: Mapping[str, float]) -> None:
        """Take the *figures* of *rank*."""
        self._posted[rank] = figures
        self._of_peers.clear()

    def of_peers(self, late: frozenset[int]) -> dict[str, list[float]]:
        """Return what a late rank reads: thirds and median of those that are not *late*."""
        if late not in self._of_peers:
            others = [each for rank, each in self._posted.items() if rank not in late]
            found = {name: list(each) for name, each in quantiles_of(others).items()}
            self._of_peers[late] = found
        return self._of_peers[late]


def _unseen(phase: Phase) -> int:
    nodes = {fault.node for fault in phase.faults if fault.kind.silence is Silence.UNSEEN}
    return len(nodes) * phase.plan.gpus


def _late(phase: Phase, rank: int, at: float) -> Late:
    extra = phase.late[rank]
    faults = phase.faults_of(rank)
    since = at - max(min(fault.begins_seconds for fault in faults), -RUN_SECONDS)
    return Late(
        rank=rank,
        peer_group=PEER_GROUP,
        stage=max(extra, key=lambda stage: extra[stage]),
        kind=NODE if any(fault.kind.scope is Scope.NODE for fault in faults) else PERSISTENT,
        ratio=sum(extra.values()) / BUSY_SECONDS,
        gpus=phase.charges.late[rank],
        since_seconds=since,
        steps=int(since / phase.step_seconds),
        confidence=9.0,
    )
