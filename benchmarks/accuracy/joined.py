"""Simulated ranks on the real join: their rings go through a store to rank 0, which judges them.

No process trains here. Each rank's steps are drawn at random, with the planted fault. They take the
path of a probe's steps: into the ring, to the store, and on rank 0 through the merge to the judge.
"""

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from typing import Any, Final

from torch._C._distributed_c10d import HashStore

from benchmarks.accuracy.plan import CHECKPOINT, SHARES, Segment
from benchmarks.accuracy.score import score
from benchmarks.accuracy.trace import REPLAYED_STEP_SECONDS
from benchmarks.accuracy.trace import Row as Cells
from benchmarks.accuracy.trace import truth as truth_of
from benchmarks.report import Row
from rank_probe.join.result import read_result
from rank_probe.join.ring import Pace, StepRing, digest
from rank_probe.join.rounds import RankZero
from rank_probe.join.store import VERDICT_KEY, PlaceInJob, group_key, result_key, steps_key
from rank_probe.judge.judge import WARMUP_STEPS
from rank_probe.judge.verdict import from_json
from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import STAGES
from rankskew.replay.findings import findings, not_judgeable
from rankskew.replay.judge import JudgedStretch
from rankskew.replay.traces import TraceStretch, instance

GROUP: Final = "all"
# Standard deviation as a share of a stage, drawn for each stage, rank and step.
DEVIATION: Final = 0.02
# How long even the slowest rank waits, as a share of a step.
EXCHANGE_SHARE: Final = 0.06

# Seconds of every rank, by stage.
OneStep = dict[int, dict[str, float]]
# Each rank's delays, in seconds by step from 0.
Delays = dict[int, dict[int, float]]


def steps(segment: Segment) -> tuple[list[OneStep], Delays]:
    """Draw the steps of *segment*; return them and the delays that they contain."""
    draw = random.Random(segment.key)
    exchange = EXCHANGE_SHARE * REPLAYED_STEP_SECONDS
    delays: Delays = {rank: {} for rank in range(segment.ranks)}
    late = {rank for rank, _ in segment.late()}
    drawn: list[OneStep] = []
    for number in range(segment.steps):
        step = {rank: _own(draw, REPLAYED_STEP_SECONDS - exchange) for rank in delays}
        for rank in late:
            if (delay := segment.delay(rank, number)) is not None:
                delays[rank][number] = delay[1] * REPLAYED_STEP_SECONDS
                step[rank][delay[0]] += delays[rank][number]
        length = exchange + max(sum(stages.values()) for stages in step.values())
        for stages in step.values():
            stages["sync"] = length - sum(stages.values())
        drawn.append(step)
    return drawn, delays


def _own(draw: random.Random, seconds: float) -> dict[str, float]:
    usual = {stage: seconds * share * draw.gauss(1, DEVIATION) for stage, share in SHARES.items()}
    return usual | {CHECKPOINT: 0.0}


class SimulatedJoin:
    """The ranks of *segment* at the real join, over a store in memory."""

    def __init__(self, segment: Segment) -> None:
        self._place = PlaceInJob(0, segment.ranks)
        self._nodes = [digest(str(segment.node(rank))) for rank in range(segment.ranks)]
        self._rings = [StepRing(Pace(self._place.period_seconds)) for _ in self._nodes]
        self._store = _store()
        self._store.set(group_key(digest(GROUP)), GROUP)
        self._zero = RankZero(self._store, self._place, threading.Event())

    def judged(self, drawn: list[OneStep]) -> JudgedStretch:
        """Return rank 0's verdicts on the steps *drawn*, each as every rank reads it."""
        ends, at = [], 0.0
        for step in drawn:
            at += sum(step[0].values())
            ends.append(at)
        ranks = tuple(range(len(self._rings)))
        found = JudgedStretch(TraceStretch(ranks, range(1, len(drawn) + 1), 0.0, at))
        found.warm = ends[WARMUP_STEPS - 1]
        done, last = 0, b""
        for now in (number * self._place.period_seconds for number in count(1)):
            first, done = done, sum(end <= now for end in ends[done:]) + done
            self._round(drawn, range(first, done), now)
            if self._store.check([VERDICT_KEY]):
                message = self._store.get(VERDICT_KEY)
                if message != last:
                    found.verdicts.append((now, from_json(json.loads(message))))
                last = message
            if done == len(drawn):
                return found
        raise AssertionError("the rounds do not end")

    def _round(self, drawn: list[OneStep], new: range, now: float) -> None:
        """Let every rank post its *new* steps, rank 0 last, which then merges."""
        for rank, ring in reversed(list(enumerate(self._rings))):
            ring.take([_vector(number + 1, drawn[number][rank]) for number in new], now)
            message = ring.message(len(self._rings), digest(GROUP), self._nodes[rank])
            self._store.set(steps_key(rank), message)
        ring = self._rings[0]
        self._zero.run([offer.step for offer in ring.offers], ring.stride, now, 0.0)

    def gpus_lost(self) -> float:
        """Return the GPUs that waited, as the join reports to the ranks that caused the waits.

        The figure is a mean over all joined steps.
        """
        told = self._store.multi_get([result_key(rank) for rank in range(len(self._rings))])
        results = [each for each in map(read_result, told) if each is not None]
        return sum(sum(each.wait_caused_seconds) for each in results) / results[0].joined_seconds


def _store() -> Any:
    return HashStore()  # Its signatures are narrower than what the join asks for.


def _vector(number: int, stages: dict[str, float]) -> StepVector:
    nanoseconds = tuple(round(1e9 * stages.get(stage, 0.0)) for stage in STAGES)
    return StepVector(number, 0, nanoseconds)


def judge(segment: Segment) -> Row:
    """Return the row of a simulated *segment*."""
    drawn, delays = steps(segment)
    join = SimulatedJoin(segment)
    judged = join.judged(drawn)
    nodes = {rank: instance(str(segment.node(rank))) for rank in range(segment.ranks)}
    job = {
        "findings": [asdict(one) for one in findings([judged], nodes)],
        "slowdown": None,
        "gpus_lost_by_kind": {"caused": join.gpus_lost()},
        "source": "join",
        "not_judgeable": not_judgeable([judged]),
    }
    return score(segment, truth_of(segment, list(_rows(drawn)), delays), job, 1.0)


def _rows(drawn: list[OneStep]) -> Iterator[Cells]:
    at = 0.0
    for number, step in enumerate(drawn, 1):
        at += sum(step[0].values())
        for rank, stages in step.items():
            cells = {f"{stage}_s": str(seconds) for stage, seconds in stages.items()}
            identity = {"job_id": "", "rank": str(rank), "peer_group": GROUP}
            yield identity | {"step": str(number), "time_s": str(at)} | cells
