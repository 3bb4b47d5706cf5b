r"""One rank that trains in some loops, once for each place of a delay.

    torchrun --nproc-per-node 2 -m tests.rank_probe.jobs.loops_job STEPS LATE_RANK LOOP PLACE...
    torchrun --nproc-per-node 2 -m tests.rank_probe.jobs.loops_job STEPS LATE_RANK LOOP-PLACE...

Each loop and place is a job of its own, named LOOP-PLACE; run by tests/rank_probe/ways.py and by
test_loops.py. Sleeping emulates a device.
"""

import sys
from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist

import rank_probe
from tests.rank_probe.jobs import loops, loops_of_updates
from tests.rank_probe.jobs.loops import Loop
from tests.rank_probe.launch import leave
from tests.rank_probe.torch_hooks.parallel_job import DELAY, HEALTHY, Seconds

# The stages that each loop has; `checkpoint` is async_save's alone, `eval` own_batches's.
STAGES: Final = ("data", "forward", "backward", "optimizer", "other", "checkpoint", "eval")
# What a healthy rank has no time in.
SELDOM: Final = ("other", "checkpoint", "eval")

LOOPS: Final[dict[str, Callable[[Seconds, int], Loop]]] = {
    each.__name__: each
    for each in (
        loops.varying_accumulation,
        loops.distillation,
        loops.several_loaders,
        loops.optimizer_in_backward,
        loops.async_save,
        loops.titan_shaped,
        loops_of_updates.local_sgd,
        loops_of_updates.diloco,
        loops_of_updates.rollouts,
        loops_of_updates.prompted_rollouts,
        loops_of_updates.own_stream,
        loops_of_updates.own_batches,
    )
}


def train(name: str, place: str, steps: int, is_late: bool) -> None:
    """Train once as job *name*-*place*, with nothing of the probe in the loop."""
    seconds = dict.fromkeys(STAGES, HEALTHY) | dict.fromkeys(SELDOM, 0.0)
    if is_late and place in STAGES:
        seconds[place] += DELAY
    loop = LOOPS[name](seconds, steps)
    dist.barrier()
    rank_probe.start(automatic=True, job_id=f"{name}-{place}")
    loop()
    rank_probe.finish()


def main() -> None:
    """Train once for each loop and place."""
    steps, late_rank, *cases = sys.argv[1:]
    if cases[0] in LOOPS:
        cases = [f"{cases[0]}-{place}" for place in cases[1:]]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in cases:
        name, _, place = case.partition("-")
        train(name, place, int(steps), dist.get_rank() == int(late_rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
