"""What each compiled function of the probe saves a step, compared with its twin in Python.

Both do the same calls, one after the other in random order, after a training step has emptied the
caches, as in a real loop. What runs once a second for all steps since is timed for many steps.
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
from rank_probe.measure import ledger, tape
from rank_probe.measure.interpreter import Interpreter
from rank_probe.measure.loop_state import LoopState
from rank_probe.measure.work_units import WorkUnits
from rank_probe.wire.stages import FORWARD

PAIRS: Final = 2_000
STEPS: Final = 200  # that are folded at once
STAGES: Final = 6  # that a loop names by hand
# The events of an ordinary step with peers: seven stages begin in it.
FETCH = e.FETCH, e.FETCHED, e.EXHAUSTED
BACKWARD = e.BACKWARD_BEGINS, e.BACKWARD_ENDED, e.BACKWARD_RAISED
STEP: Final = (
    *FETCH[:2],
    *(e.BACKWARD_BEGINS, e.GRADIENTS_READY, e.BACKWARD_ENDED),
    *(e.OPTIMIZER_BEGINS, e.OPTIMIZER_ENDED),
)
FLAT: Final = [number for i, code in enumerate(STEP * STEPS) for number in (code, 1_000 * i)]
BATCH: Final = [torch.ones(ROWS, WIDTH), torch.ones(ROWS)]

Call = Callable[[], object]


def note(in_c: bool) -> Call:
    """Return a step whose stages the user names."""
    note = (tape.new_tape if in_c else tape.PythonTape)().note

    def step() -> None:
        for _ in range(STAGES):
            note(e.ENTER | FORWARD)
            note(e.LEAVE)

    return step


def around(in_c: bool) -> Call:
    """Return a fetch and a backward."""
    make: Any = tape.around if in_c else tape.python_around
    noted, measure, asks = tape.new_tape(), WorkUnits().measure, torch.is_grad_enabled
    more = {"asks": asks, "otherwise": e.FETCH_UNGRADED, "tells": measure}
    fetch, backward = make(noted, lambda: BATCH, *FETCH, **more), make(noted, int, *BACKWARD)
    return lambda: (fetch(), backward())


def add(in_c: bool) -> Call:
    """Return the adding up of many steps."""
    make: Any = ledger.new_ledger if in_c else ledger.PythonLedger
    adds = make(0, lambda *_: None, lambda _: None).add
    boundaries = Interpreter(LoopState(automatic=True, finds_steps=True)).read(FLAT)
    return lambda: adds(boundaries)


# What is compared, and how many steps a call is.
CASES: Final[dict[str, tuple[Callable[[bool], Call], int]]] = {
    "Tape.note, a loop with six stages named by hand": (note, 1),
    "Around, a fetch and a backward": (around, 1),
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
