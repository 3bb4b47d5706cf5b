"""One training loop, written as a user of each tool would write it.

Each arm is a context manager that attaches its tool, yields the loop as a function of the batches,
and detaches. Attaching and detaching are not timed; a tool's work per step, or every few steps,
is.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
import torch
from torch import nn, profiler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import rank_probe
from rank_probe import api

Batches = DataLoader[Any]
Train = Callable[[Batches], None]

WIDTH, ROWS, LABELS = 128, 32, 10


def batches(steps: int, device: str = "cpu") -> Batches:
    """Return a loader of *steps* ready batches: no worker, nothing to collate or to copy."""
    rows = torch.randn(steps, ROWS, WIDTH, device=device)
    labels = torch.randint(LABELS, (steps, ROWS), device=device)
    return DataLoader(TensorDataset(rows, labels), batch_size=None)


def network() -> nn.Module:
    """Return three layers, as small as still makes sense."""
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, LABELS),
    )


@dataclass
class Training:
    """What every arm trains: on one CPU thread, a step takes a third of a millisecond."""

    model: nn.Module = field(default_factory=network)
    loss: nn.Module = field(default_factory=nn.CrossEntropyLoss)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def run(self, loader: Batches) -> None:
        """Train as usual; nothing in here knows of a tool."""
        for rows, labels in loader:
            self.optimizer.zero_grad()
            self.loss(self.model(rows), labels).backward()
            self.optimizer.step()


@contextmanager
def bare(training: Training) -> Iterator[Train]:
    """No tool."""
    yield training.run


@contextmanager
def automatic(training: Training) -> Iterator[Train]:
    """The probe on the unchanged loop, as under `python -m rank_probe`."""

    def train(loader: Batches) -> None:
        training.run(loader)
        fold()

    with probe(automatic=True):
        yield train


@contextmanager
def automatic_at_root(training: Training) -> Iterator[Train]:
    """Like `automatic`, for jobs in which a parameter's hook cannot cut backward, such as FSDP.

    A single nested backward, here from reentrant checkpointing, is enough to cause that.
    """
    with automatic(training) as train:
        numbers = torch.ones(1, requires_grad=True)
        checkpoint(torch.sin, numbers, use_reentrant=True).sum().backward()
        yield train


@contextmanager
def manual(training: Training) -> Iterator[Train]:
    """The probe with the stages and the step named by hand; it detects backward by itself."""

    def train(loader: Batches) -> None:
        for rows, labels in rank_probe.wrap(loader):
            training.optimizer.zero_grad()
            with rank_probe.stage("forward"):
                loss = training.loss(training.model(rows), labels)
            loss.backward()
            with rank_probe.stage("optimizer"):
                training.optimizer.step()
            rank_probe.step()
        fold()

    with probe(automatic=False):
        yield train


@contextmanager
def probe(*, automatic: bool) -> Iterator[None]:
    """Run the probe in this process; raises RuntimeError if it is off or fails."""
    rank_probe.start(automatic=automatic, job_id="overhead")
    if not api.running():
        raise RuntimeError("the probe does not start; is RANK_PROBE=0 in the environment?")
    try:
        yield
    finally:
        rank_probe.finish()
        assert_it_works()


def assert_it_works() -> None:
    """Raise RuntimeError if the probe failed in this process: a broken one costs less."""
    # The module's name after and before the probe was split into packages: see fold().
    guard: Any = sys.modules.get("rank_probe.guest.guard") or sys.modules["rank_probe.guard"]
    if guard.failures.count:
        raise RuntimeError(
            f"the probe failed {guard.failures.count} times, so its cost says nothing"
        )


def fold() -> None:
    """Sum up the records of the block's steps, as the pusher does once a second.

    It holds the interpreter's lock on any thread, so it is part of the cost of a step. With
    `--before`, the probe may come from another checkout. Only this function and assert_it_works
    depend on its internals; the rest of the benchmark uses the public API.
    """
    running = api._probe
    if running is None:
        return
    running.timeline.steps.totals()
    running.work.totals()  # It reads the masks of a dict batch.
    device = running._parts.device
    if device is not None:
        device.steps.totals()


@contextmanager
def histograms(training: Training) -> Iterator[Train]:
    """Five Prometheus histograms filled by hand with perf_counter, their children made once."""
    seconds = prometheus_client.Histogram(
        "stage_seconds",
        "Time of a stage.",
        ["stage"],
        registry=prometheus_client.CollectorRegistry(),
    )
    stages = ("data", "forward", "backward", "optimizer", "step")
    data, forward, backward, optimizer, step = (seconds.labels(stage) for stage in stages)
    now = time.perf_counter

    def train(loader: Batches) -> None:
        began = now()
        for rows, labels in loader:
            fetched = now()
            training.optimizer.zero_grad()
            loss = training.loss(training.model(rows), labels)
            predicted = now()
            loss.backward()
            derived = now()
            training.optimizer.step()
            ended = now()
            data.observe(fetched - began)
            forward.observe(predicted - fetched)
            backward.observe(derived - predicted)
            optimizer.observe(ended - derived)
            step.observe(ended - began)
            began = ended

    yield train


@contextmanager
def torch_profiler(training: Training) -> Iterator[Train]:
    """torch.profiler left on: every step recorded, in cycles of 50, nothing written."""
    cycle = profiler.schedule(wait=0, warmup=1, active=49)
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], schedule=cycle) as profile:

        def train(loader: Batches) -> None:
            for rows, labels in loader:
                training.optimizer.zero_grad()
                training.loss(training.model(rows), labels).backward()
                training.optimizer.step()
                profile.step()

        yield train


Arm = Callable[[Training], AbstractContextManager[Train]]
