"""traceml-ai on the same loop: `traceml.init` and `trace_step`, with `traceml serve` running.

It has no detach. While another arm runs, its patches and optimizer hooks are replaced by torch's
own functions. Its sampler and sender threads continue meanwhile, so their cost is in the bare
blocks too and not in the difference: the figure is a lower bound.
"""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.overhead.arms import Arm, Batches, Train, Training
from devstack.process import free_port

# (owner, attribute) of each function that traceml.init(mode="auto") replaces.
PATCHED: tuple[tuple[Any, str], ...] = (
    (DataLoader, "__iter__"),
    (nn.Module, "__call__"),
    (torch.Tensor, "backward"),
    (torch.Tensor, "to"),
    (torch.autograd, "backward"),
)
# Its queue holds 2,048 steps and drops the rest; the default of 2 s suits longer steps.
INTERVAL_SECONDS = 0.5


@contextmanager
def serving() -> Iterator[Arm]:
    """Start traceml-ai in this process and its aggregator on the loopback; yield the arm.

    Raises ModuleNotFoundError if it is not installed, RuntimeError if it does not start.
    """
    traceml = importlib.import_module("traceml_ai")  # It carries no types.
    originals = [getattr(owner, name) for owner, name in PATCHED]
    with _aggregator() as port:
        traceml.init(
            mode="auto",
            interval=INTERVAL_SECONDS,
            aggregator_port=port,
            connect_timeout_sec=60.0,
            on_missing_aggregator="raise",
        )
        patches = [getattr(owner, name) for owner, name in PATCHED]
        _put(originals)
        try:
            yield _arm(traceml, originals, patches)
        finally:
            importlib.import_module("traceml_ai.sdk.initial")._stop_runtime_for_init()


def _arm(traceml: Any, originals: list[Any], patches: list[Any]) -> Arm:
    hooks = importlib.import_module("traceml_ai.instrumentation.hooks.optimizer_hooks")
    events = importlib.import_module("traceml_ai.instrumentation.step_events")

    @contextmanager
    def arm(training: Training) -> Iterator[Train]:
        def train(loader: Batches) -> None:
            for rows, labels in loader:
                with traceml.trace_step(training.model):
                    training.optimizer.zero_grad()
                    training.loss(training.model(rows), labels).backward()
                    training.optimizer.step()

        _put(patches)
        try:
            yield train
        finally:
            _put(originals)
            hooks.reset_optimizer_timing()
            if events._STEP_TIME_QUEUE.full():
                raise RuntimeError("traceml-ai drops steps: its figure would not be its price")

    return arm


def _put(functions: list[Any]) -> None:
    for (owner, name), function in zip(PATCHED, functions, strict=True):
        setattr(owner, name, function)


@contextmanager
def _aggregator() -> Iterator[int]:
    """Run `traceml serve` on a free port of the loopback; `traceml.init` waits until it answers."""
    port = free_port()
    program = Path(sys.executable).with_name("traceml")
    with tempfile.TemporaryDirectory() as logs:
        process = subprocess.Popen(
            [program, "serve", "--aggregator-port", str(port), "--logs-dir", logs],
            cwd=logs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield port
        finally:
            process.terminate()
            process.wait(60)
