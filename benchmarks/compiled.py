"""What each compiled function of the probe saves a step, compared with its twin in Python.

The hooks of a step note on the compiled tape in both. Both do the same calls, one after the other
in random order, after a training step has emptied the caches, as in a real loop. What runs once a
second for all steps since is timed for many steps.
"""

import random
import statistics
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import torch

from benchmarks.overhead.arms import ROWS, WIDTH, network
from benchmarks.report import write
from rank_probe.measure import events as e
from rank_probe.measure import interpreter, ledger, tape
from rank_probe.measure.boundaries import packed
from rank_probe.measure.interpreter import Interpreter
from rank_probe.measure.loop_state import LoopState
from rank_probe.measure.tape import Tape
from rank_probe.measure.work_units import WorkUnits
from rank_probe.wire.stages import FORWARD

PAIRS: Final = 2_000
STEPS: Final = 200  # that are folded at once
STAGES: Final = 6  # that a loop names by hand
# The events of an ordinary step with peers: seven stages begin in it.
STEP: Final = (
    *(e.FETCH, e.FETCHED),
    *(e.BACKWARD_BEGINS, e.GRADIENTS_READY, e.BACKWARD_ENDED),
    *(e.OPTIMIZER_BEGINS, e.OPTIMIZER_ENDED),
)
EVENTS: Final = packed(
    number for i, code in enumerate(STEP * STEPS) for number in (code, 1_000 * i)
)

Call = Callable[[], object]


def note(in_c: bool) -> Call:
    """Return a step whose stages the user names."""
    note = (tape.new_tape if in_c else tape.PythonTape)().note

    def step() -> None:
        for _ in range(STAGES):
            note(e.ENTER | FORWARD)
            note(e.LEAVE)

    return step


def _hooks(in_c: bool) -> Tape:
    """Return a compiled tape, whose hooks are in C or in Python."""
    compiled = tape.new_tape()
    return compiled if in_c else _PythonHooks(compiled)


class _PythonHooks(tape.PythonTape):
    """The hooks in Python, on another tape."""

    def __init__(self, other: Tape) -> None:
        self.note = other.note  # type: ignore[method-assign]


def fetching(in_c: bool) -> Call:
    """Return the fetch of a batch of two tensors."""
    batch, work = [torch.zeros(ROWS, WIDTH), torch.zeros(ROWS)], WorkUnits()
    hook = tape.fetching(
        _hooks(in_c), lambda _: batch, work.measure, torch.is_grad_enabled, work.count
    )
    return lambda: hook(None)


def around(in_c: bool) -> Call:
    """Return a backward that does nothing."""
    events = e.BACKWARD_BEGINS, e.BACKWARD_ENDED, e.BACKWARD_RAISED
    hook = _hooks(in_c).around(lambda *_, **__: None, *events)
    return lambda: hook(None, None, None, False, inputs=None)


def _nothing(*_: object) -> None:
    return None


def noting(in_c: bool) -> Call:
    """Return the two hooks of an optimizer's step."""
    hooks = _hooks(in_c)
    begins, ended = (
        hooks.noting(e.OPTIMIZER_BEGINS, _nothing),
        hooks.noting(e.OPTIMIZER_ENDED, None),
    )
    optimizer = object()

    def step() -> None:
        begins(optimizer, (optimizer,), {})
        ended(optimizer, (optimizer,), {})

    return step


def read(in_c: bool) -> Call:
    """Return the walk over the events of many steps."""
    walk: Any = interpreter.read if in_c else interpreter.python_read
    start = Interpreter(LoopState(automatic=True, finds_steps=True))
    return lambda: walk(start._node, EVENTS)


def add(in_c: bool) -> Call:
    """Return the adding up of many steps."""
    make: Any = ledger.new_ledger if in_c else ledger.PythonLedger
    adds = make(0).add
    boundaries = Interpreter(LoopState(automatic=True, finds_steps=True)).read(EVENTS)
    return lambda: adds(boundaries)


# What is compared, and how many steps a call is.
CASES: Final[dict[str, tuple[Callable[[bool], Call], int]]] = {
    "Tape.note, a loop with six stages named by hand": (note, 1),
    "Tape.fetching, a batch of two tensors": (fetching, 1),
    "Tape.around, a backward": (around, 1),
    "Tape.noting, the two hooks of an optimizer": (noting, 1),
    "read, seven events": (read, STEPS),
    "Ledger.add, seven boundaries": (add, STEPS),
}


def compare(make: Callable[[bool], Call], steps: int) -> dict[str, float]:
    """Return the medians, in microseconds a step."""
    calls, spent = {in_c: make(in_c) for in_c in (True, False)}, []
    model, inputs = network(), torch.randn(ROWS, WIDTH)
    for _ in range(PAIRS):
        pair = {}
        for in_c in random.sample((True, False), 2):
            model(inputs).sum().backward()
            began = perf_counter_ns()
            calls[in_c]()
            pair[in_c] = (perf_counter_ns() - began) / 1e3 / steps
        spent.append(pair)
    return {
        "in C, us a step": statistics.median(pair[True] for pair in spent),
        "in Python": statistics.median(pair[False] for pair in spent),
        "saves": statistics.median(pair[False] - pair[True] for pair in spent),
    }


def main() -> None:
    """Compare and report."""
    torch.set_num_threads(1)
    if tape.new_tape is tape.PythonTape or ledger.new_ledger is ledger.PythonLedger:
        raise SystemExit("the extension modules are not built: see scripts/setup.sh")
    rows = [{"compiled": name} | compare(*case) for name, case in CASES.items()]
    write("compiled", rows, packages=["torch"])


if __name__ == "__main__":
    main()
