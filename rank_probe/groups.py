"""The process groups of this process, one after another, and the join of each."""

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

from rank_probe.guest.guard import never_raise
from rank_probe.join.join import GroupToJoin
from rank_probe.join.store import PlaceInJob
from rank_probe.measure.tape import NOBODY
from rank_probe.process import identity
from rank_probe.process.facts import own_facts
from rank_probe.process.own_rank import OwnRank
from rank_probe.process.runtime import cuda_device, pcie_link
from rank_probe.report.report import Parts
from rank_probe.torch_hooks import process_group
from rank_probe.wire.no_join import OFF

REHEARSAL: Final = "rank_probe.join.rehearsal"


class ProcessGroups:
    """Joins the steps of each process group, from the first step that all its ranks take together.

    Call all methods on the training thread, or on the thread that forms the group.
    """

    def __init__(
        self,
        parts: Parts,
        own_rank: OwnRank,
        environment: Mapping[str, str],
        push_soon: Callable[[], object],
    ) -> None:
        self._parts = parts
        self._own_rank = own_rank
        self._environment = environment
        self._push_soon = push_soon
        self._had_one = False
        self._has_stepped = False
        # Set in a forked child, where nobody releases the locks that the training thread held.
        self.is_over = False

    @never_raise
    def prepare(self) -> None:
        """Import what the join needs, because a later import would hold up training."""
        if not sys.modules["torch"].distributed.is_available():
            return
        importlib.import_module("rank_probe.torch_hooks.store")
        self._had_one = process_group.rank_and_world_size() is not None
        launched = identity.from_environment(self._environment)
        if launched is not None and launched.rank == 0 and launched.world_size > 1:
            importlib.import_module(REHEARSAL)

    def while_ranks_meet(self) -> None:
        """Rehearse, if this process is likely to be rank 0."""
        if not self.is_over and (rehearsal := sys.modules.get(REHEARSAL)) is not None:
            rehearsal.rehearse()

    def first_step_done(self) -> None:
        """Join from now on; before its first step a rank may turn out not to train at all."""
        self._has_stepped = True
        self._join()

    def gone(self) -> None:
        """Commit the last step of a process group that is gone now."""
        if self.is_over:
            return
        self._parts.timeline.finish()
        self._parts.join.group_is_gone()

    def formed(self) -> None:
        """Take part in a newly formed process group, perhaps under another rank number."""
        if self.is_over:
            return
        timeline, join = self._parts.timeline, self._parts.join
        if self._had_one or timeline.steps.totals().steps:
            # Some ranks may be new, and have no part in the step in progress.
            timeline.finish()
            timeline.restart()
        self._parts.steps_before = timeline.steps.totals().steps
        join.group_is_new()
        if timeline.tape.owner == NOBODY:
            join.give_up()  # This rank's steps are not counted from the first one.
        self._own_rank.group_is_new(is_first=not self._had_one)
        self._had_one = True
        self._push_soon()  # Reports a changed rank number at once.
        place = process_group.rank_and_world_size()
        if place is not None and place[0] == 0 and place[1] > 1:
            importlib.import_module(REHEARSAL).rehearse()
        if self._has_stepped:
            self._join()

    @never_raise
    def _join(self) -> None:
        place = process_group.rank_and_world_size()
        if place is None or place[1] == 1:
            return
        from rank_probe.torch_hooks.store import obstacle, opener

        me = self._own_rank.who()
        job_id = "" if me is None else me.job_id
        join = self._parts.join
        join.obstacle = OFF if join.is_off else obstacle()
        if join.obstacle:
            return
        connect = opener(f"{job_id}/{place[1]}", self._environment)
        device = self._parts.device
        steps = self._parts.timeline.steps if device is None else device.steps
        before = self._parts.steps_before
        work = self._parts.work.amount
        gpu = self._own_rank.gpu_model, pcie_link(cuda_device(self._parts.timeline.trains_on))
        own, parts = cache(partial(own_facts, self._environment, *gpu)), self._parts
        who, facts = self._own_rank.who, lambda: {**own(), "at": parts.whereabouts}
        group = GroupToJoin(connect, PlaceInJob(*place), steps, who, before, work, facts)
        join.begin(group)
