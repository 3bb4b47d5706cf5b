"""Causes: the rank's own work: more than its peers have, or code that waits or runs longer."""

from dataclasses import replace
from functools import partial
from typing import Final

from exporter.causes.cpu_time import is_blocked, runs_longer
from exporter.causes.model import BLOCKED, CPU_QUEUE, GPU, LOCK, PIPE, RUNNING, SLEEP, SOCKET
from exporter.causes.row import LOADING, OWN_STAGES, CauseRow, Certainty
from exporter.causes.shares import (
    has_stage_alone,
    is_in_state,
    is_in_state_like_peers,
    more_work,
    unless,
    waits,
)
from exporter.causes.tokens import INTERPRETER

CODE: Final = "code"
EXTRA_DUTIES: Final = "extra_duties"
# Stages whose work grows with the samples; the optimizer's depends only on the model.
PER_SAMPLE: Final = ("h2d", "forward", "backward", "compute")
# Even with equal shares, batches differ by a hundredth.
MORE_WORK: Final = 0.02
# Python collects garbage for less than a hundredth of the time unless something grows.
LEAST_GC: Final = 0.01

_of_work = partial(CauseRow, certainty=Certainty.WORK)
_of_duties = partial(_of_work, cause=EXTRA_DUTIES, share=has_stage_alone, healthy=0.0)
_of_batches = partial(_of_work, cause="uneven_batches", stages=PER_SAMPLE)
MORE: Final = (
    _of_duties(
        detail="checkpoint",
        stages=("checkpoint",),
        says="it spends {own} a step writing checkpoints, its peers none",
        first_action="`py-spy dump --pid PID` on NODE; then `df -h` and `iostat -x 1`",
    ),
    _of_duties(
        detail="eval",
        stages=("eval",),
        says="it spends {own} a step evaluating, its peers none",
        first_action="`py-spy dump --pid PID` on NODE",
    ),
    _of_work(
        cause="gc",
        figure="gc_ratio",
        share=waits(LEAST_GC),
        healthy=0.0,
        says="it spends {own} of the time collecting garbage[, its peers {peers}]",
        first_action="look for a growing cache with `py-spy dump --pid PID` on NODE",
    ),
    _of_batches(
        figure="tokens_per_step",
        share=more_work(MORE_WORK),
        says="it processes {own} tokens a step, its peers {peers}",
        first_action="print the lengths of its samples and of a peer's",
    ),
    _of_batches(
        figure="samples_per_step",
        share=unless("tokens_per_step", more_work(MORE_WORK)),
        says="it processes {own} samples a step, its peers {peers}",
        first_action="print the sizes of its batches and of a peer's",
    ),
)


def _waits(detail: str, does: str, first: str, stages: tuple[str, ...] = OWN_STAGES) -> CauseRow:
    return CauseRow(
        cause=CODE,
        detail=detail,
        certainty=Certainty.AMOUNT,
        stages=stages,
        states=frozenset({detail}),
        share=is_blocked,
        says=f"it {does}[ in `{{place}}`] for {{time}}",
        first_action=first,
    )


_of_code = partial(CauseRow, cause=CODE, certainty=Certainty.GUESS)
_DUMP: Final = "`py-spy dump --pid PID` on NODE, a few times"
CODE_ROWS: Final = (
    _waits(SLEEP, "sleeps", _DUMP),
    _waits(LOCK, "waits for a lock", "`py-spy dump --pid PID` on NODE: which thread holds it?"),
    replace(
        _waits(INTERPRETER, "", "do its work in another process, or after the step on all ranks"),
        says="another thread of its process holds the GIL for {time}: {place}",
    ),
    _waits(SOCKET, "waits for a socket", "`ss -tinp | grep -A1 pid=PID` on NODE: for whom?"),
    # Not while loading: input.py has the rows for waits for the loader's workers.
    _waits(
        PIPE,
        "waits for another process",
        "`pstree -p PID` on NODE, then `py-spy dump` of its children",
        tuple(stage for stage in OWN_STAGES if stage not in LOADING),
    ),
    _of_code(
        detail=BLOCKED,
        states=frozenset({BLOCKED}),
        share=is_in_state,
        says="it is blocked[ in `{place}`] for {time}",
        first_action="`cat /proc/PID/stack` and `py-spy dump --native --pid PID` on NODE",
    ),
    _of_code(
        detail=RUNNING,
        states=frozenset({RUNNING, CPU_QUEUE}),
        share=runs_longer,
        says="it runs[ `{place}`] for {time}",
        first_action=_DUMP,
    ),
    _of_code(
        detail=GPU,
        states=frozenset({GPU}),
        share=is_in_state_like_peers,
        says="it waits for its GPU[ in `{place}`] for {time}",
        first_action="`nvidia-smi -q -i UUID` on NODE (compare with a peer's)",
    ),
)
