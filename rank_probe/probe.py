"""The probe of one process: a timeline, the patches that drive it, and the pusher."""

import importlib.util
import itertools
import logging
import os
import time
from collections.abc import Mapping

from rank_probe import identity, runtime
from rank_probe.guard import failures, never_raise
from rank_probe.identity import Identity
from rank_probe.patches import Patches
from rank_probe.push import DEFAULT_ENDPOINT, Pusher
from rank_probe.snapshot import Snapshot
from rank_probe.stages import STAGES
from rank_probe.timeline import Timeline

log = logging.getLogger("rank_probe")


class Probe:
    """Times the calling thread's training loop and tells the node's exporter.

    With *automatic* the stages and steps of a torch loop are found without a change to it; else
    only backward and the waits are, and the caller names the rest. Arguments that are None come
    from the *environment*.
    """

    def __init__(
        self,
        *,
        automatic: bool,
        job_id: str | None = None,
        peer_group: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.timeline = Timeline(automatic=automatic)
        self._automatic = automatic
        self._environment = dict(environment)
        if job_id is not None:
            self._environment["RANKSKEW_JOB_ID"] = job_id
        if peer_group is not None:
            self._environment["RANKSKEW_PEER_GROUP"] = peer_group
        self._identity = identity.from_environment(self._environment)
        self._gpu_uuid = ""
        self._runtime_info = runtime.runtime_info()
        self._patches: list[Patches] = []
        self._finished = False
        self._sequence = itertools.count(1)
        self._started = time.time()
        self._pusher = Pusher(
            self._environment.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT, self.snapshot
        )
        self.timeline.after_first_step = self._look_around

    def attach(self) -> None:
        """Put the patches into torch; without torch there is nothing to patch."""
        if importlib.util.find_spec("torch") is None:
            log.info("rank_probe: torch is not installed, so no stage is found automatically")
            return
        from rank_probe import torch_backward, torch_collectives, torch_stages

        self._patches.append(torch_backward.attach(self.timeline))
        self._patches.append(torch_collectives.attach(self.timeline))
        if self._automatic:
            self._patches.append(torch_stages.attach(self.timeline))

    def detach(self) -> None:
        """Take the patches out again, last first."""
        while self._patches:
            self._patches.pop().undo()

    def start_pushing(self) -> None:
        """Begin to tell the exporter, once a second."""
        self._pusher.start()

    @never_raise
    def finish(self, *, clean: bool = True) -> None:
        """Detach and push a last time; only a *clean* end marks the rank finished."""
        self.timeline.finish()
        self.detach()
        self._finished = clean
        self._pusher.stop()
        self.timeline.disable()

    def forget_in_child(self) -> None:
        """Do nothing in a forked child: it has no pusher thread, and it is not the rank."""
        self.timeline.disable()
        self._identity = None

    def snapshot(self) -> Snapshot | None:
        """Return the rank's state; None while nobody knows which rank this is."""
        me = self._identify()
        if me is None:
            return None
        totals = self.timeline.steps.totals()
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
            stage_seconds={
                name: nanoseconds / 1e9
                for name, nanoseconds in zip(STAGES, totals.nanoseconds, strict=True)
                if nanoseconds
            },
            busy_seconds=totals.busy_nanoseconds / 1e9,
            busy_seconds_squared=totals.busy_seconds_squared,
            stage=STAGES[self.timeline.clock.stage],
            stage_elapsed_seconds=self.timeline.steps.elapsed_seconds(),
            finished=self._finished,
            sync_floor_seconds=self.timeline.steps.floor_seconds(),
            last_step_timestamp_seconds=totals.last_step_timestamp_seconds,
            probe_errors=failures.count,
            push_failures=self._pusher.failed_pushes,
            rank_info={
                "local_rank": me.local_rank,
                "node_rank": me.node_rank,
                "world_size": str(me.world_size),
                "gpu_uuid": self._gpu_uuid,
                "clock": "host",
                "attempt": str(me.attempt),
                "source": "automatic" if self._automatic else "manual",
            },
            runtime_info=self._runtime_info,
        )

    def _identify(self) -> Identity | None:
        """Return who this is; without a launcher's variables once torch.distributed knows.

        A process that trains without either is a job of one rank.
        """
        if self._identity is None:
            known = runtime.rank_and_world_size()
            if known is None and self.timeline.steps.totals().steps:
                known = (0, 1)
            if known is not None:
                self._identity = identity.for_rank(self._environment, *known)
        return self._identity

    def _look_around(self) -> None:
        """Read what is only known once training runs, on the thread that trains."""
        self._gpu_uuid = runtime.gpu_uuid()
        self._runtime_info = runtime.runtime_info()
