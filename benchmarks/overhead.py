"""What the probe costs: a stage switch in a hot loop, a step of a real torch loop.

The arms of the real loop are interleaved at random in blocks of steps within one process, and each
is compared with the bare block nearest in time, because the machine's speed drifts.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.report import quartiles, write
from rank_probe import torch_stages, torch_waits
from rank_probe.api import _Stage
from rank_probe.stages import BACKWARD, DATA, FORWARD, OPTIMIZER, SYNC
from rank_probe.timeline import Timeline

HOT_CALLS = 100_000
ROUNDS = 60
STEPS_A_BLOCK = 200


def hot(name: str, call: Callable[[], object]) -> dict[str, Any]:
    """Return the cost of *call* in a loop that does nothing else, µs."""
    costs = []
    for _ in range(9):
        started = time.perf_counter_ns()
        for _ in range(HOT_CALLS):
            call()
        costs.append((time.perf_counter_ns() - started) / HOT_CALLS / 1e3)
    return {"what": name, "unit": "µs"} | quartiles(costs)


def hot_rows() -> Iterator[dict[str, Any]]:
    """Yield the cost of the probe's single moves."""
    timeline = Timeline(automatic=False)
    stage = _Stage(timeline, FORWARD)

    def with_block() -> None:
        with stage:
            pass

    def whole_step() -> None:
        for number in (DATA, FORWARD, BACKWARD, OPTIMIZER):
            timeline.enter(number)
            timeline.leave()
        timeline.enter_wait()
        timeline.leave_wait()
        timeline.complete_step()

    yield hot("clock.switch (hot)", lambda: timeline.clock.switch(SYNC))
    yield hot("with probe.stage(...) (hot)", with_block)
    yield hot("a whole step: 4 stages, a wait, the commit (hot)", whole_step)


class Loop:
    """A small training loop on the CPU; *by_hand* adds the manual API's calls."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        rows = TensorDataset(torch.randn(STEPS_A_BLOCK, 32, 128))
        self._loader = DataLoader(rows, batch_size=None)

    def block(self) -> float:
        """Run a block of steps; return µs a step."""
        started = time.perf_counter_ns()
        for (rows,) in self._loader:
            self._model(rows).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        return (time.perf_counter_ns() - started) / STEPS_A_BLOCK / 1e3

    def block_by_hand(self, timeline: Timeline) -> float:
        """Run a block of steps with every stage named by hand; return µs a step."""
        forward, optimizer = _Stage(timeline, FORWARD), _Stage(timeline, OPTIMIZER)
        started = time.perf_counter_ns()
        batches = iter(self._loader)
        while True:
            timeline.enter_fetch()
            try:
                (rows,) = next(batches)
            except StopIteration:
                break
            finally:
                timeline.leave_fetch(forward_follows=False)
            with forward:
                loss = self._model(rows).sum()
            loss.backward()
            with optimizer:
                self._optimizer.step()
            self._optimizer.zero_grad()
            timeline.complete_step()
        return (time.perf_counter_ns() - started) / STEPS_A_BLOCK / 1e3


@contextmanager
def attached(*, automatic: bool) -> Iterator[Timeline]:
    """Time the block with the probe's patches in place."""
    timeline = Timeline(automatic=automatic)
    patches = [torch_waits.attach(timeline)]
    if automatic:
        patches.append(torch_stages.attach(timeline))
    try:
        yield timeline
    finally:
        for patch in reversed(patches):
            patch.undo()


def loop_rows() -> Iterator[dict[str, Any]]:
    """Yield what each arm adds to a step of the real loop."""
    loop = Loop()

    def bare() -> float:
        return loop.block()

    def automatic() -> float:
        with attached(automatic=True):
            return loop.block()

    def manual() -> float:
        with attached(automatic=False) as timeline:
            return loop.block_by_hand(timeline)

    arms = {"bare": bare, "automatic": automatic, "manual": manual}
    for run in arms.values():
        run()  # Warm up.
    added: dict[str, list[float]] = {"automatic": [], "manual": []}
    bare_costs = []
    for _ in range(ROUNDS):
        cost = {name: arms[name]() for name in random.sample(list(arms), len(arms))}
        bare_costs.append(cost["bare"])
        for name, costs in added.items():
            costs.append(cost[name] - cost["bare"])
    yield {"what": "a step of the bare loop", "unit": "µs"} | quartiles(bare_costs)
    for name, costs in added.items():
        yield {"what": f"added to a step, {name}", "unit": "µs"} | quartiles(costs)


def main() -> None:
    """Measure and tell."""
    write("overhead", [*hot_rows(), *loop_rows()])


if __name__ == "__main__":
    main()
