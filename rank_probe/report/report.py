"""A rank's report: its snapshot, from what the parts of the probe have counted."""

import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rank_probe.guest.guard import failures
from rank_probe.guest.yielding import give_way
from rank_probe.join.join import Join
from rank_probe.judge.standing import STANDS_SECONDS
from rank_probe.measure import events
from rank_probe.measure.device_clock import DeviceClock
from rank_probe.measure.steps import Steps
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import WorkUnits
from rank_probe.process.garbage import GarbagePauses
from rank_probe.process.identity import Identity
from rank_probe.process.lifecycle import Lifecycle
from rank_probe.process.own_rank import OwnRank
from rank_probe.report.blocks import Blocks
from rank_probe.report.lifecycle_events import LifecycleEvents
from rank_probe.wire.snapshot import DEFAULT_LEVEL, LEVEL_OFF, Snapshot
from rank_probe.wire.stages import STAGES

# Counters only grow while a process keeps its rank number. A rank's series continue from process
# to process: after a drop they must restart at 0, or this process's whole past counts again.
COUNTERS: Final = (
    *("steps", "stage_seconds", "stage_host_seconds", "busy_seconds"),
    *("dropped_steps", "samples", "tokens", "padding_tokens", "gc_pause_seconds"),
    *("cuda_alloc_retries", "probe_errors", "push_failures"),
    *("wait_caused_seconds", "group_wait_seconds", "joined_seconds"),
)
log = logging.getLogger("rank_probe")

# The wait for a first step after the first sign of training.
PATIENCE_SECONDS: Final = 60.0
# The same if a fetch is the only sign: the first step may compile a model.
COMPILING_SECONDS: Final = 120.0
SIGNS: Final = frozenset({events.FETCHED, events.BACKWARD_ENDED, events.OPTIMIZER_ENDED})

FIX: Final = """\
    import rank_probe as probe
    probe.start()  # on the thread that trains, before the loop
    probe.step()   # in the loop, after each step"""
if TYPE_CHECKING:
    from rank_probe.torch_hooks.cuda_events import CudaMemory  # Its module imports torch.


class Renumbered:
    """Splits a process's counts by rank number: a last report of the old one, then from 0.

    For one thread.
    """

    def __init__(self, own_rank: OwnRank) -> None:
        self._own_rank = own_rank
        self._base: Snapshot | None = None  # the last under the old number
        self._started: float | None = None  # when it got its number, if it had another before
        self._formed: float | None = None  # as reported under its number

    def told(self, snapshot: Snapshot, *, is_last: bool) -> Snapshot:
        """Return *snapshot* as its rank number reports it; *is_last* marks the number's last."""
        whole = snapshot
        if self._base is not None:
            snapshot = since(whole, self._base)
        if (started := self._started) is not None:
            snapshot = replace(
                snapshot,
                started_timestamp_seconds=started,  # Newer than the previous process.
                lifecycle_events=[
                    event
                    for event in snapshot.lifecycle_events
                    if event["began_timestamp_seconds"] >= started
                ],
            )
        if is_last:
            self._base, self._started = whole, self._own_rank.since
            # Otherwise the old number would look like a dead process.
            snapshot = replace(snapshot, finished=True)
        else:
            self._formed = self._own_rank.formed
        snapshot.group_formed_timestamp_seconds = self._formed  # replace() takes a tenth of a push.
        return snapshot


def since(snapshot: Snapshot, base: Snapshot) -> Snapshot:
    """Return *snapshot* less the counters of *base*, an earlier snapshot of the same process."""
    counted = {
        name: _less(getattr(snapshot, name), getattr(base, name), keeps_zero="stage" not in name)
        for name in COUNTERS
    }
    return replace(snapshot, **counted)


def _less(now: Any, before: Any, *, keeps_zero: bool) -> Any:
    """Return *now* less *before*, in a dict by key; zeros are dropped there unless *keeps_zero*."""
    if isinstance(now, Mapping):
        left = {key: max(each - before.get(key, 0), 0) for key, each in now.items()}
        return left if keeps_zero else {key: each for key, each in left.items() if each}
    return now if now is None or before is None else max(now - before, 0)


class MissingSteps:
    """Warns once, if a loop shows signs of training but completes no step; for one thread.

    *automatic* says that steps are detected, not marked by the caller.
    """

    def __init__(self, *, automatic: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._automatic = automatic
        self._now = now
        self._since: float | None = None
        self.is_done = False

    def look(self, steps: int, seen: Callable[[], Collection[int]]) -> None:
        """Check the events *seen* so far; cheap once there has been a step."""
        if self.is_done or steps:
            self.is_done = True
            return
        signs = SIGNS.intersection(seen())
        if signs and self._since is None:
            self._since = self._now()
        patience = COMPILING_SECONDS if signs == {events.FETCHED} else PATIENCE_SECONDS
        if self._since is not None and self._now() - self._since > patience:
            self.is_done = True
            log.warning(
                "rank_probe has found no complete step in %.0f s of training, so this rank reports "
                "no steps: %s. Add these three lines to the script to fix this:\n%s",
                patience,
                why(signs) if self._automatic else "probe.step() was not called",
                FIX,
            )


def why(signs: Collection[int]) -> str:
    """Return what is missing in a loop that shows *signs*."""
    if events.OPTIMIZER_ENDED in signs:
        return "an optimizer ran, but no batch of a DataLoader, DDP forward or backward followed"
    if events.BACKWARD_ENDED in signs:
        return "backward runs, but no optimizer of torch.optim does"
    return "a DataLoader is read, but torch.autograd.backward does not run"


@dataclass
class Parts:
    """The parts of a probe that its snapshots read; *device* is set once a GPU has trained."""

    timeline: Timeline
    work: WorkUnits
    garbage: GarbagePauses
    lifecycle: Lifecycle
    join: Join
    device: DeviceClock | None = None
    steps_before: int = 0  # those before the current process group
    memory: Callable[[], "CudaMemory | None"] = lambda: None
    # The Snapshot fields that only a late or stuck rank has.
    stacks: Callable[[], dict[str, Any]] = dict
    # Where this rank runs and stands. Replaced as a whole, because the join's thread reads it.
    whereabouts: Mapping[str, Any] = field(default_factory=dict)


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
        timed = None if self.finished or self.level == LEVEL_OFF else stage
        events = self._lifecycle_events.look(timed, host.spent, elapsed)
        if device is not None and elapsed >= STANDS_SECONDS:
            # The thread may wait for the device in any stage; the device's own stage counts.
            stands_in = device.stands_in()
            stage = stage if stands_in is None else stands_in
        give_way()  # Not earlier: the readings above must be consistent.
        more = {
            **({} if device is None or device.recorder.error else self._memory()),
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
            dropped_steps=0 if device is None else device.recorder.dropped_steps,
            samples=samples,
            tokens=tokens,
            padding_tokens=padding_tokens,
            gc_pause_seconds=parts.garbage.seconds(),
            level=self.level,
            limitations=self.limitations,
            lifecycle_events=events,
            **more,
        )

    def _rank_info(self, me: Identity) -> dict[str, str]:
        """Return the same dict object until its content changes, so it is encoded only once."""
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
