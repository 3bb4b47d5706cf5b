"""The probe of a simulated rank: its counters, and the snapshots that it would push."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from exporter.causes.model import DISK, GPU, RUNNING
from fleet_simulator.faults import Kind, Silence
from fleet_simulator.training import (
    BUSY_SECONDS,
    NOISE,
    PEER_GROUP,
    RUN_SECONDS,
    STAGE_SHARES,
    STATIC_SPREAD,
    SYNC,
    Phase,
    RepeatedVerdict,
    Training,
)
from rank_probe.version import __version__
from rank_probe.wire.snapshot import MOST_THREAD_STATES, Snapshot

# Of its peers, by figure: the lower third, the median and the upper third.
PeerFigures = Mapping[str, list[float]]
SAMPLES_A_STEP: Final = 8
TOKENS_A_STEP: Final = 32_768
FIRST_PID: Final = 20_000
# A rank without a judge reports its mean step over blocks of at least this length.
BLOCK_SECONDS: Final = 30.0
STARTING_SECONDS: Final = 1_200.0
RUNTIME: Final = {
    "torch": "2.13.0",
    "cuda": "13.0",
    "nccl": "2.28.3",
    "python": "3.11.7",
    "backend": "nccl",
    "probe": __version__,
    "driver": "580.95",
    "env_hash": "5f1d7a84",
}


def pid_of(rank: int) -> int:
    """Return the process ID of *rank*."""
    return FIRST_PID + rank


class SimulatedRank:
    """Rank *rank* of *training*; *unix_start* is the start of the simulation, in Unix seconds."""

    def __init__(self, training: Training, rank: int, gpu_uuid: str, unix_start: float) -> None:
        self._training = training
        self._rank = rank
        self._gpu_uuid = gpu_uuid
        self._unix_start = unix_start
        self._draw = random.Random(f"{training.plan.job_id} {rank}")
        self._usual = {
            stage: BUSY_SECONDS * share * self._draw.gauss(1, STATIC_SPREAD)
            for stage, share in STAGE_SHARES.items()
        }
        self._until = -RUN_SECONDS
        self._stage_seconds: dict[str, float] = {}
        self._block_seconds: dict[str, float] = {}
        self._wait_caused: dict[str, float] = {}
        self._steps = self._sequence = self._block = self._block_bits = 0
        self._busy = self._gc = self._tokens = self._joined = 0.0

    @property
    def names(self) -> list[str]:
        """Return the labels that tell its series from those of other ranks."""
        rank, pid, gpu = self._rank, pid_of(self._rank), self._gpu_uuid
        return [f'rank="{rank}"', f'dp="{rank}"', f'pid="{pid}"', f'gpu_uuid="{gpu}"']

    def snapshot(
        self, at: float, said: RepeatedVerdict | None, peers: Callable[[], PeerFigures] = dict
    ) -> Snapshot:
        """Return what the probe pushes at *at*.

        *said* is the judge's verdict, which the rank repeats. *peers* returns its peers' figures,
        which it reads while it is late.
        """
        self._advance(at)
        self._sequence += 1
        training = self._training
        started = -STARTING_SECONDS if training.has(Silence.STARTING, at) else -RUN_SECONDS
        stage, elapsed = self._now(at)
        timed = self._steps > 0
        return Snapshot(
            job_id=training.plan.job_id,
            peer_group=PEER_GROUP,
            rank=self._rank,
            world_size=training.plan.ranks,
            attempt=0,
            pid=pid_of(self._rank),
            started_timestamp_seconds=self._unix_start + started,
            sequence=self._sequence,
            heartbeat_timestamp_seconds=self._unix_start + at,
            steps=self._steps,
            stage_seconds=dict(self._stage_seconds),
            busy_seconds=self._busy,
            stage=stage,
            stage_elapsed_seconds=elapsed,
            finished=training.has(Silence.FINISHED, at),
            last_step_timestamp_seconds=(
                self._unix_start + training.last_step_seconds(at) if timed else None
            ),
            rank_info=self._rank_info(),
            runtime_info=RUNTIME | {"device_count": str(training.plan.gpus)},
            samples=self._steps * SAMPLES_A_STEP,
            tokens=int(self._tokens),
            padding_tokens=int(self._tokens * 0.06),
            gc_pause_seconds=self._gc,
            cuda_memory_allocated_bytes=64_000_000_000,
            cuda_alloc_retries=0,
            level="off" if training.has(Silence.OFF, at) else "stages",
            block_steps=1 << self._block_bits if self._block_seconds else 0,
            block_seconds=dict(self._block_seconds),
            **self._while_late(at, said, peers),
            lifecycle_events=self._events(at, started),
            **self._join(at, said),
        )

    def _join(self, at: float, said: RepeatedVerdict | None) -> dict[str, Any]:
        if said is None:
            return {}
        return {
            "wait_caused_seconds": dict(self._wait_caused),
            "joined_seconds": self._joined,
            "join_coverage": 1.0,
            "verdict": said.json,
            "verdict_age_seconds": at - said.judged_seconds,
        }

    def _rank_info(self) -> dict[str, str]:
        plan = self._training.plan
        return {
            "local_rank": str(self._rank % plan.gpus),
            "node_rank": str(self._rank // plan.gpus),
            "world_size": str(plan.ranks),
            "gpu_uuid": self._gpu_uuid,
            "dp": str(self._rank),
            "tp": "0",
            "pp": "0",
            "clock": "device",
            "source": "torchrun",
        }

    def _events(self, at: float, started: float) -> list[dict[str, Any]]:
        """Return the lifecycle events of its process, which started at *started*."""
        lives: dict[str, float | None] = {"init": 21.4, "rendezvous": 8.2, "first_step": 64.1}
        if self._training.has(Silence.STARTING, at):
            lives = {"init": 21.4, "rendezvous": None}
        began, events = self._unix_start + started, []
        for number, (name, seconds) in enumerate(lives.items(), start=1):
            event = {"number": number, "event": name, "began_timestamp_seconds": began}
            events.append(event | {"seconds": seconds})
            began += seconds or 0.0
        return events

    def _while_late(
        self, at: float, said: RepeatedVerdict | None, peers: Callable[[], PeerFigures]
    ) -> dict[str, Any]:
        """Return the fields that the rank reports only while the verdict names it."""
        named = {late.rank: late for late in said.verdict.late} if said is not None else {}
        if self._rank not in named:
            return {}
        stage = named[self._rank].stage
        kinds = [fault.kind for fault in self._training.phase(at).faults_of(self._rank)]
        states = [state for kind in kinds for state in thread_states(kind)]
        # The late stage first; the sort is stable, so the others keep their order.
        states.sort(key=lambda state: state["stage"] != stage)
        lines = [kind.line for kind in kinds if kind.line]
        return {
            "late_lines": [{"stage": stage, "place": line, "share": 0.87} for line in lines],
            "thread_states": states[:MOST_THREAD_STATES],
            "peer_figures": peers(),
            "loader": next((kind.line for kind in kinds if kind.worker_state), ""),
        }

    def _now(self, at: float) -> tuple[str, float]:
        """Return the current stage, and for how long the rank has been in it."""
        phase = self._training.phase(at)
        if self._training.has(Silence.STARTING, at):
            return "other", at + STARTING_SECONDS
        if phase.halts:
            mine = (fault.kind for fault in phase.faults_of(self._rank))
            stuck = (kind.stuck_in for kind in mine if kind.silence is Silence.STUCK)
            return next(stuck, SYNC), at - phase.begins_seconds
        stages = list(STAGE_SHARES)
        stage = self._draw.choices(stages, [STAGE_SHARES[stage] for stage in stages])[0]
        return stage, 0.05

    def _advance(self, at: float) -> None:
        for phase, steps in self._training.stretches(self._until, at):
            if steps > 0:
                self._take(phase, steps)
        self._until = at

    def _take(self, phase: Phase, steps: int) -> None:
        """Take *steps* steps of *phase*."""
        usual = self._mean_step(phase)
        # Noise that is independent from step to step shrinks in a mean.
        noise = NOISE / math.sqrt(steps)
        spent = {s: steps * mean * self._draw.gauss(1, noise) for s, mean in usual.items()}
        busy = sum(spent.values())
        whole = steps * phase.step_seconds
        if not any(fault.kind.silence is Silence.UNTIMED for fault in phase.faults):
            spent[SYNC] = max(whole - busy, 0.0)
        for stage, seconds in spent.items():
            self._stage_seconds[stage] = self._stage_seconds.get(stage, 0.0) + seconds
        self._steps += steps
        self._busy += busy
        self._joined += whole
        self._count_causes(phase, steps)
        self._end_block(phase, usual)

    def _mean_step(self, phase: Phase) -> dict[str, float]:
        usual = dict(self._usual)
        turns = {s: seconds / phase.plan.ranks for s, seconds in phase.turns.items()}
        for extra in (phase.late.get(self._rank, {}), turns, phase.of_all):
            for stage, seconds in extra.items():
                usual[stage] = usual.get(stage, 0.0) + seconds
        return usual

    def _count_causes(self, phase: Phase, steps: int) -> None:
        faults = phase.faults_of(self._rank)
        more = 1 + sum(fault.kind.more_tokens for fault in faults)
        self._tokens += steps * TOKENS_A_STEP * more
        self._gc += steps * BUSY_SECONDS * sum((f.kind.gc_share for f in faults), 2e-4)
        caused = phase.charges.late.get(self._rank, {})
        for stage, gpus in caused.items():
            seconds = steps * gpus * phase.step_seconds
            self._wait_caused[stage] = self._wait_caused.get(stage, 0.0) + seconds

    def _end_block(self, phase: Phase, usual: dict[str, float]) -> None:
        self._block_bits = math.ceil(math.log2(BLOCK_SECONDS / phase.step_seconds))
        block = self._steps >> self._block_bits
        if block == self._block:
            return
        self._block = block
        noise = NOISE / math.sqrt(1 << self._block_bits)
        self._block_seconds = {s: mean * self._draw.gauss(1, noise) for s, mean in usual.items()}
        busy = sum(self._block_seconds.values())
        self._block_seconds[SYNC] = max(phase.step_seconds - busy, 0.0)


def thread_states(kind: Kind) -> list[dict[str, Any]]:
    """Return how the main thread spends its time in the stages that *kind* makes longer."""
    found = []
    for stage, extra in kind.extra.items():
        # A thread that waits for its GPU waits for the whole stage.
        usual = 0.0 if kind.state == GPU else STAGE_SHARES.get(stage, 0.0)
        share = extra / (extra + usual)
        place = kind.mount if kind.state == DISK else kind.line
        found.append({"stage": stage, "state": kind.state, "share": share, "place": place})
        if kind.state != RUNNING and share < 1:
            found.append({"stage": stage, "state": RUNNING, "share": 1 - share, "place": ""})
    return found
