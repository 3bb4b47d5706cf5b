"""A first round of rank 0, before training: torch takes milliseconds for the first calls."""

import functools
import threading
from typing import Final

from rank_probe.guest.guard import never_raise
from rank_probe.join.align import Alignment
from rank_probe.join.charge import use_one_cpu
from rank_probe.join.figures import message
from rank_probe.join.merge import Merger
from rank_probe.join.peers import PostedFigures
from rank_probe.join.ring import STEPS_A_ROUND, Pace, StepRing
from rank_probe.measure.steps import StepVector
from rank_probe.wire.stages import STAGES

RANKS: Final = 3
STAGE_NANOSECONDS: Final = 1_000_000


@functools.cache
def rehearse() -> threading.Thread:
    """Merge and judge made-up steps, once per process, in a thread as in real rounds."""
    thread = threading.Thread(target=never_raise(_round), name="rank_probe_join", daemon=True)
    thread.start()
    return thread


def _round() -> None:
    use_one_cpu()
    vector = (STAGE_NANOSECONDS,) * len(STAGES)
    ring = StepRing(Pace(1.0))
    steps = ring.take([StepVector(step, 0, vector) for step in range(STEPS_A_ROUND)], 0.0)
    alignment = Alignment(steps, range(RANKS), RANKS)
    alignment.add([ring.message(RANKS, 0, 0)] * RANKS)
    merger = Merger(RANKS)
    merger.judge(alignment.common(), {}, 0.0)
    merger.totals.messages(ring.stride)
    table = PostedFigures()
    table.add(range(RANKS), [message({}, "all")] * RANKS)
    list(table.messages_for_groups_of({0}))
