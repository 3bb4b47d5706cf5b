"""The probe of one process: a timeline, the patches that drive it, and the pusher."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rank_probe.groups import ProcessGroups
from rank_probe.guest.guard import never_raise
from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches
from rank_probe.guest.yielding import give_way
from rank_probe.join.join import Join
from rank_probe.judge.standing import STANDS_SECONDS, standing
from rank_probe.judge.verdict import late_stage
from rank_probe.lines.stacks import Stacks
from rank_probe.measure.device_clock import DeviceClock
from rank_probe.measure.timeline import Timeline
from rank_probe.measure.work_units import Measure, WorkUnits
from rank_probe.process import identity, runtime
from rank_probe.process.garbage import GarbagePauses
from rank_probe.process.identity import Identity
from rank_probe.process.lifecycle import Lifecycle
from rank_probe.process.own_rank import OwnRank
from rank_probe.report.endpoint import DEFAULT_ENDPOINT
from rank_probe.report.push import Control, Pusher
from rank_probe.report.report import MissingSteps, Parts, RankReport, Renumbered
from rank_probe.report.trace import Trace
from rank_probe.torch_hooks import private, process_group
from rank_probe.torch_hooks.dynamo import hide_probe
from rank_probe.wire.snapshot import LEVEL_DETAIL, LEVEL_OFF, MOST_LIMITATIONS, Snapshot
from rank_probe.wire.stages import DATA, OTHER, STAGES

if TYPE_CHECKING:
    from rank_probe.torch_hooks.mesh import Coordinates  # Its module imports torch.

log = logging.getLogger("rank_probe")


class Probe:
    """Times the calling thread's training loop and reports to the node's exporter.

    With *automatic*, the probe detects the stages and steps of a torch loop in unchanged code.
    Otherwise it detects only backward and the waits, and the caller marks the rest. *measure*
    replaces the inspection of batches. Arguments that are None come from the *environment*.
    """

    def __init__(
        self,
        *,
        automatic: bool,
        job_id: str | None = None,
        peer_group: str | None = None,
        measure: Measure | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.work = WorkUnits(measure)
        self.timeline = Timeline(automatic=automatic, work=self.work)
        self._automatic = automatic
        self._environment = dict(environment)
        named = {"RANKSKEW_JOB_ID": job_id, "RANKSKEW_PEER_GROUP": peer_group}
        given = {name: value for name, value in named.items() if value is not None}
        self._environment |= given
        self.own_rank = OwnRank(environment, given, lambda: self.timeline.steps.totals().steps > 0)
        self._parts = Parts(
            self.timeline,
            self.work,
            GarbagePauses(),
            Lifecycle(),
            Join(self._environment, self._push_soon),
        )
        self.stacks = Stacks(
            self._environment,
            thread=lambda: self.timeline.tape.owner,
            stage=lambda: STAGES[self.timeline.state.stage],
            spent=self.timeline.spent,
            backward=lambda: self.timeline.loop,
            on_first=self._push_soon,
            loader=lambda: self.timeline.loader(),
            before_model=lambda: self.timeline.is_before_model,
        )
        self._groups = ProcessGroups(self._parts, self.own_rank, self._environment, self._push_soon)
        self._renumbered = Renumbered(self.own_rank)
        self._parts.stacks = self.stacks.snapshot_fields
        self._answer: Mapping[str, object] = {}
        self._me: Identity | None = None  # as of the last snapshot
        self._told: dict[str, Any] = {}  # where this rank is, from the exporter
        self._stuck_in: str | None = None
        self._report = RankReport(self._parts, source="automatic" if automatic else "manual")
        self._report.runtime_info = runtime.runtime_info()
        self._patches: list[Patches] = []
        self._mesh: Coordinates | None = None
        self._given: dict[str, str] = {}  # coordinates from the user
        self._control = Control()
        self._trace = Trace(self._environment, self.timeline.steps)
        self._missing_steps = MissingSteps(automatic=automatic)
        self._pusher = Pusher(
            self._environment.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT,
            self.snapshot,
            on_answer=self._after_push,
            token_file=self._environment.get("RANKSKEW_TOKEN_FILE", ""),
        )
        self.timeline.after_first_step = self._look_around

    def attach(self) -> None:
        """Patch torch now if it is imported, else as soon as the script imports it.

        The script may first set environment variables that torch reads during its import.
        """
        self._patches.append(self._parts.garbage.attach())
        waiting = Patches()
        waiting.on_undo(when_imported("torch", lambda _: self._attach_to_torch()))
        self._patches.append(waiting)

    def _attach_to_torch(self) -> None:
        from rank_probe.torch_hooks import (
            backward,
            checkpoints,
            collectives,
            copies,
            cuda_events,  # noqa: F401 - a hook imports from it, and must find it hidden
            parallel,
            rendezvous,
            training_loop,
        )
        from rank_probe.torch_hooks.mesh import Coordinates

        self._mesh = Coordinates()
        self._groups.prepare()
        hide_probe()  # After the last import, and before the first hook.
        self._attach_each(
            self._mesh.attach,
            lambda: backward.attach(self.timeline),
            lambda: collectives.attach(self.timeline),
            lambda: parallel.attach(self.timeline),
            lambda: rendezvous.attach(self._parts.lifecycle, self._groups),
        )
        if self._automatic:
            self._attach_each(
                lambda: checkpoints.attach(self.timeline),
                lambda: copies.attach(self.timeline),
                lambda: training_loop.attach(self.timeline),
            )

    def _attach_each(self, *attaches: Callable[[], Patches]) -> None:
        """Attach what this torch version supports: one part that fails must not cost the others."""
        for attach in attaches:
            patches = never_raise(attach)()
            if patches is not None:
                self._patches.append(patches)

    def detach(self) -> None:
        """Remove the patches, last first."""
        while self._patches:
            self._patches.pop().undo()

    @property
    def options(self) -> dict[str, object]:
        """The current values of the arguments of `start`; None for those that are unset."""
        variables = {"job_id": "RANKSKEW_JOB_ID", "peer_group": "RANKSKEW_PEER_GROUP"}
        named = {name: self._environment.get(each) for name, each in variables.items()}
        return named | {"measure": self.work.given}

    @never_raise
    def annotate(
        self, *, dp: int | None, tp: int | None, pp: int | None, peer_group: str | None
    ) -> None:
        """Set this rank's coordinates; they override detected ones."""
        given = {"dp": dp, "tp": tp, "pp": pp}
        self._given |= {name: str(value) for name, value in given.items() if value is not None}
        if peer_group is not None:
            self._environment["RANKSKEW_PEER_GROUP"] = peer_group
        self._take_place()

    def start_pushing(self) -> None:
        """Start reporting to the exporter, once a second."""
        self._pusher.start()

    def _push_soon(self) -> None:
        self._pusher.soon()

    @never_raise
    def finish(self, *, clean: bool = True) -> None:
        """Detach and push one last time; only a *clean* end marks the rank finished."""
        self.timeline.finish()
        if self._parts.device is not None:
            self._parts.device.finish()
        if clean:
            self._parts.lifecycle.end()
        self._parts.join.stop()
        self.stacks.stop()
        self.detach()
        self._report.finished = clean
        self._pusher.stop()
        self._trace.close()
        self.timeline.disable()

    def forget_in_child(self) -> None:
        """Turn off in a forked child: it has no pusher thread, and it is not the rank."""
        self.timeline.disable()
        self._groups.is_over = True
        self.own_rank.end()

    def snapshot(self) -> Snapshot | None:
        """Return the rank's state; None while its rank is unknown."""
        self._me = me = self.own_rank.who()
        if me is None:
            self.timeline.steps.fold()  # Otherwise the training thread has to.
            return None
        self._watch_lateness(me.rank)
        if (
            me.world_size > 1
            and not self.timeline.state_at_fold.has_peers
            and process_group.has_peers()
        ):
            self.timeline.wait_for_peers()
        give_way()
        before = self.own_rank.given_up()
        snapshot = self._report.snapshot(before or me, push_failures=self._pusher.failed_pushes)
        self._watch_standing(snapshot)
        if before is not None:
            self._push_soon()  # under its new rank number
        return self._renumbered.told(snapshot, is_last=before is not None)

    def _watch_lateness(self, rank: int) -> None:
        """Sample this rank's stack only while it is named late, or is stuck in a stage."""
        is_off = self._report.level == LEVEL_OFF
        verdict = self._parts.join.verdict
        stage = None if is_off else self._stuck_in or late_stage(verdict, rank, self._answer)
        self.stacks.watch(stage)
        if stage is None:
            return
        # A loop without a loader that mostly fetches during `other` reads its batches there.
        if self.stacks.mostly_fetches(STAGES[OTHER]) and self.timeline.name_what_it_reads():
            self.stacks.rename_fetches(STAGES[OTHER], STAGES[DATA])

    def _watch_standing(self, snapshot: Snapshot) -> None:
        """Send its peers where this rank stands, and find its line of code if it is stuck."""
        parts = self._parts
        step_seconds = (parts.join.verdict or {}).get("step_seconds") or 0.0
        parts.whereabouts = self._told | standing(snapshot, step_seconds, parts.steps_before)
        is_long = snapshot.stage_elapsed_seconds >= STANDS_SECONDS
        stuck_in = snapshot.stage if is_long and snapshot.steps else None
        if stuck_in != self._stuck_in:
            self._stuck_in = stuck_in
            self.stacks.watch(None)  # Earlier samples do not show where it is stuck.

    def _take_place(self) -> None:
        """Report this rank's coordinates, and name its peer group unless the user did."""
        found = {} if self._mesh is None else self._mesh.found
        coordinates = found | self._given
        self._report.coordinates = coordinates
        named = self._environment.get("RANKSKEW_PEER_GROUP")
        device = runtime.cuda_device(self.timeline.trains_on)
        model = self.own_rank.gpu_model = runtime.gpu_model(device)
        self.own_rank.peer_group = named or identity.peer_group(coordinates, model)

    def _look_around(self) -> None:
        """Read what is only known once training runs, on the training thread."""
        self._parts.lifecycle.first_step_done()
        device = runtime.cuda_device(self.timeline.trains_on)
        self._report.gpu_uuid = runtime.gpu_uuid(device)
        self._report.runtime_info = runtime.runtime_info()
        # Not earlier: a mesh may be created late, and every series carries the group's name.
        self._take_place()
        self.own_rank.who()  # The group may be gone when the first snapshot is taken.
        if device is not None:
            self._go_on_in_device_time(device)
        self._report.limitations = list(private.limitations)[:MOST_LIMITATIONS]
        self._groups.first_step_done()

    def _go_on_in_device_time(self, device: int) -> None:
        from rank_probe.torch_hooks.cuda_events import AllocatorMemory, CudaEvents

        memory, steps = AllocatorMemory(device), self.timeline.steps.totals().steps
        clock = DeviceClock(
            CudaEvents(device),
            steps_before=steps,
            hides_exchange=self.timeline.exchanges_apart,
            after_read=memory.look,
        )
        self._trace.go_on_with(clock.steps)
        self._parts.device = clock
        self._parts.memory = memory.latest
        self.timeline.also_tell(clock.boundary)

    def _after_push(self, answer: Mapping[str, object]) -> None:
        """Apply the operator's orders, on the pusher's thread."""
        self._answer = answer
        if answer:  # Nearly every one is empty.
            self._obey(answer)
        if not self._missing_steps.is_done:
            self._missing_steps.look(self.timeline.steps.totals().steps, self.timeline.seen)
        if self._me is not None:
            self._trace.write(self._me, on_demand=self._report.level == LEVEL_DETAIL)

    def _obey(self, answer: Mapping[str, object]) -> None:
        self._parts.join.tell(answer.get("figures"))
        if isinstance(told := answer.get("whereabouts"), dict):
            self._told = told
        level = self._control.level(answer)
        if level != self._report.level:
            self._report.level = level
            if level == LEVEL_OFF:
                self.timeline.disable()
                self._parts.join.give_up()
            else:
                self.timeline.enable()
