"""A rank's report: its snapshot, made from what the parts of the probe have counted."""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rank_probe.guest.guard import failures
from rank_probe.guest.yielding import give_way
from rank_probe.join.join import Join
from rank_probe.measure.device_clock import DeviceClock
from rank_probe.measure.steps import Steps
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import WorkUnits
from rank_probe.process.garbage import GarbagePauses
from rank_probe.process.identity import Identity
from rank_probe.process.lifecycle import Lifecycle
from rank_probe.report.blocks import Blocks
from rank_probe.report.lifecycle_events import LifecycleEvents
from rank_probe.wire.snapshot import DEFAULT_LEVEL, LEVEL_OFF, Snapshot
from rank_probe.wire.stages import STAGES

if TYPE_CHECKING:
    from rank_probe.torch_hooks.cuda_events import CudaMemory  # Its module imports torch.


@dataclass
class Parts:
    """The parts of one probe, which its snapshots read; *device* exists once training has begun."""

    timeline: Timeline
    work: WorkUnits
    garbage: GarbagePauses
    lifecycle: Lifecycle
    join: Join
    device: DeviceClock | None = None
    steps_before: int = 0  # the process group
    memory: Callable[[], "CudaMemory | None"] = lambda: None
    # What a Snapshot has of a late rank only.
    stacks: Callable[[], dict[str, Any]] = dict


class RankReport:
    """Creates snapshots, each newer than the last; for one thread."""

    def __init__(self, parts: Parts, *, source: str) -> None:
        self._parts = parts
        self._source = source
        self._sequence = itertools.count(1)
        self._started = time.time()
        self._blocks: Blocks | None = None
        self._lifecycle_events = LifecycleEvents(parts.lifecycle)
        self._info_of: object = None
        self._info: dict[str, str] = {}
        self.gpu_uuid = ""
        self.runtime_info: dict[str, str] = {}
        self.limitations: list[str] = []
        self.coordinates: Mapping[str, str] = {}
        self.level = DEFAULT_LEVEL
        self.finished = False

    def snapshot(self, me: Identity, *, push_failures: int) -> Snapshot:
        """Return the state of the rank *me*."""
        parts = self._parts
        host = parts.timeline.steps.totals()
        device = parts.device
        steps = parts.timeline.steps if device is None else device.steps
        totals = host if device is None else device.steps.totals()
        samples, tokens, padding_tokens = parts.work.totals()
        stage_seconds = _seconds_by_stage(totals.nanoseconds)
        stage = parts.timeline.state_at_fold.stage
        elapsed = host.elapsed_seconds
        events = self._lifecycle_events.look(self._timed(stage), host.spent, elapsed)
        give_way()  # Not earlier: what was read so far belongs together.
        more = {
            **({} if device is None else self._memory()),
            **parts.stacks(),
            **parts.join.snapshot_fields(stage_seconds),
            **self._block(steps, me),
        }
        give_way()
        return Snapshot(
            job_id=me.job_id,
            peer_group=me.peer_group,
            rank=me.rank,
            world_size=me.world_size,
            attempt=me.attempt,
            pid=os.getpid(),
            started_timestamp_seconds=self._started,
            sequence=next(self._sequence),
            heartbeat_timestamp_seconds=time.time(),
            steps=totals.steps,
            stage_seconds=stage_seconds,
            busy_seconds=totals.busy_nanoseconds / 1e9,
            stage=STAGES[stage],
            stage_elapsed_seconds=elapsed,
            finished=self.finished,
            last_step_timestamp_seconds=host.last_step_timestamp_seconds,
            probe_errors=failures.count,
            push_failures=push_failures,
            rank_info=self._rank_info(me),
            runtime_info=self.runtime_info,
            stage_host_seconds={} if device is None else _seconds_by_stage(host.nanoseconds),
            dropped_steps=0 if device is None else device.dropped_steps,
            samples=samples,
            tokens=tokens,
            padding_tokens=padding_tokens,
            gc_pause_seconds=parts.garbage.seconds(),
            level=self.level,
            limitations=self.limitations,
            lifecycle_events=events,
            **more,
        )

    def _timed(self, stage: int) -> int | None:
        """Return *stage*, None if it is the one in which timing stopped."""
        return None if self.finished or self.level == LEVEL_OFF else stage

    def _rank_info(self, me: Identity) -> dict[str, str]:
        """Return the same dict as long as it is the same: then it is not encoded again."""
        of = me, self.gpu_uuid, self._parts.device, self.level, self.coordinates
        if of != self._info_of:
            self._info_of, self._info = of, self._new_rank_info(me)
        return self._info

    def _new_rank_info(self, me: Identity) -> dict[str, str]:
        return {
            "local_rank": me.local_rank,
            "node_rank": me.node_rank,
            "world_size": str(me.world_size),
            "gpu_uuid": self.gpu_uuid,
            "clock": "host" if self._parts.device is None else "device",
            "attempt": str(me.attempt),
            "source": self._source,
            "level": self.level,
            **self.coordinates,
        }

    def _block(self, steps: Steps, me: Identity) -> dict[str, Any]:
        """Return the block of a rank with peers, if no join compares it with them."""
        before = self._parts.steps_before
        if self._blocks is None or not self._blocks.is_of(steps, before):
            if self._blocks is not None:
                self._blocks.forget()
            self._blocks = Blocks(steps, before)
        if me.world_size == 1 or self._parts.join.speaks:
            self._blocks.forget()
            return {}
        return self._blocks.snapshot_fields()

    def _memory(self) -> dict[str, Any]:
        found = self._parts.memory()
        if found is None:
            return {}
        return {
            "cuda_memory_allocated_bytes": found.allocated_bytes,
            "cuda_alloc_retries": found.alloc_retries,
        }


def _seconds_by_stage(nanoseconds: Iterable[int]) -> dict[str, float]:
    """Return the seconds of the stages that occurred."""
    pairs = zip(STAGES, nanoseconds, strict=True)
    return {stage: each / 1e9 for stage, each in pairs if each}
