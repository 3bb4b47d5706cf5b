"""The training of `gpu_check`: a DDP loop with stages of long kernels, and faults."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn, profiler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from rank_probe.measure.device_clock import DeviceClock
from rank_probe.measure.ledger import StepTotals
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import backward, collectives, training_loop
from rank_probe.torch_hooks.cuda_events import CudaEvents

# The name of a stage's range in the profiler.
RANGE = "stage:"
DEVICE = "cuda"


@dataclass
class Faults:
    """The faults of a run; *item* reads the loss after every step, as a log would."""

    late_peer_ms: float = 0.0
    slow_backward_ms: float = 0.0
    late_loader_ms: float = 0.0
    item: bool = False


class Net(nn.Module):
    """Square layers; backward can be made slow in the middle one."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.sleep_in_backward: Callable[[torch.Tensor], None] | None = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        for number, layer in enumerate(self.layers):
            rows = layer(rows).relu()
            if number == len(self.layers) // 2 and self.sleep_in_backward and rows.requires_grad:
                rows.register_hook(self.sleep_in_backward)
        return rows.square().mean()


class Loader(Dataset[torch.Tensor]):
    """The same batch, on the device, again and again, with a delay."""

    def __init__(self, batch: torch.Tensor, steps: int, late_ms: float) -> None:
        self._batch, self._steps, self._late_seconds = batch, steps, late_ms / 1e3

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, _index: int) -> torch.Tensor:
        if self._late_seconds:
            time.sleep(self._late_seconds)
        return self._batch


@dataclass
class Clocks:
    """The probe without its pusher."""

    timeline: Timeline
    device: DeviceClock

    def read(self) -> tuple[StepTotals, StepTotals]:
        """Return the host's and the device's totals, with the device idle."""
        self.timeline.finish()
        torch.cuda.synchronize()
        self.device.finish()
        return self.timeline.steps.totals(), self.device.steps.totals()


@contextmanager
def probed() -> Iterator[Clocks]:
    """Attach the probe as `python -m rank_probe` would."""
    events = CudaEvents(torch.cuda.current_device())
    clocks = Clocks(Timeline(automatic=True), DeviceClock(events))

    def begin() -> None:
        clocks.timeline.also_tell(clocks.device.boundary)

    clocks.timeline.after_first_step = begin
    modules = (backward, collectives, training_loop)
    patches = [module.attach(clocks.timeline) for module in modules]
    try:
        yield clocks
    finally:
        for each in reversed(patches):
            each.undo()
        clocks.timeline.disable()


Wrap = Callable[[Net], nn.Module]


class Training:
    """A loop of one rank; DDP's exchange of its one bucket takes as long as a late peer would.

    With *wrap*, the model is what *wrap* returns for the net, and there is no late peer.
    """

    def __init__(
        self, faults: Faults, width: int = 4096, layers: int = 16, wrap: Wrap | None = None
    ) -> None:
        self.faults = faults
        self._cycles_per_ms = cycles_per_ms()
        self._peers = torch.cuda.Stream()
        self.batch = torch.randn(width, width, device=DEVICE)
        self.net = Net(width, layers).to(DEVICE)
        if faults.slow_backward_ms:
            self.net.sleep_in_backward = lambda _: self._sleep(faults.slow_backward_ms)
        self.model: Any = wrap(self.net) if wrap else self._with_a_peer()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def run(self, steps: int) -> None:
        """Train, with each stage in a range that the profiler shows."""
        data = Loader(self.batch, steps, self.faults.late_loader_ms)
        for rows in DataLoader(data, batch_size=None):
            self.optimizer.zero_grad()
            with profiler.record_function(f"{RANGE}forward"):
                loss = self.model(rows)
            with profiler.record_function(f"{RANGE}backward"):
                loss.backward()
            with profiler.record_function(f"{RANGE}optimizer"):
                self.optimizer.step()
            if self.faults.item:
                loss.item()

    def _with_a_peer(self) -> nn.Module:
        model = DistributedDataParallel(self.net, gradient_as_bucket_view=True)
        model.register_comm_hook(None, self._exchange)
        return model

    def _sleep(self, milliseconds: float) -> None:
        torch.cuda._sleep(int(milliseconds * self._cycles_per_ms))

    def _exchange(
        self,
        _state: object,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]  # DDP wants its name
    ) -> torch.futures.Future[torch.Tensor]:
        """Return the gradients once the peers' stream, not the host, has waited long enough."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices())
        self._peers.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._peers):
            if self.faults.late_peer_ms and bucket.is_last():
                self._sleep(self.faults.late_peer_ms)
            future.set_result(bucket.buffer())
        return future


def devices() -> list[int | str | torch.device]:
    """Return the devices that a future of the exchange covers."""
    return [torch.cuda.current_device()]


def cycles_per_ms() -> float:
    """Return how many cycles the device's sleep kernel counts in a millisecond."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    began.record()
    torch.cuda._sleep(50_000_000)
    ended.record()
    ended.synchronize()
    return 50_000_000 / float(began.elapsed_time(ended))
