"""Check the device clock on a CUDA device: one command, a table, exit 1 when a check fails.

The stages of a DDP loop are compared with the device work that torch.profiler saw, in a plain run
and with each fault planted: a late peer, a slow backward, a late loader, a loop that never waits
for the device. Then come CUDA graphs, torch.compile and FSDP2. Writes
results/gpu_check.json; without a CUDA device it prints that and exits 2.
"""

import copy
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import torch
from torch import distributed, nn, profiler
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.gpu_check.figures import (
    WITHIN,
    Stages,
    at_most,
    equal,
    exit_code,
    near,
    per_step,
    profiled_ms,
    stages_table,
    told,
    verdict,
    wraps_table,
)
from benchmarks.gpu_check.training import DEVICE, Clocks, Faults, Net, Training, Wrap, probed
from benchmarks.report import Row, write
from rank_probe.guest.guard import failures
from rank_probe.measure import events

WARM_UP: Final = 5
STEPS: Final = 40
NO_DEVICE = "gpu_check needs a CUDA device, and torch sees none here."


def run(training: Training, clocks: Clocks, steps: int = STEPS) -> tuple[Stages, Stages, Stages]:
    """Return ms per step by stage, from the profiler, the device's clock and the host's."""
    training.run(WARM_UP)
    host_before, device_before = clocks.read()
    with profiler.profile(activities=profiler.supported_activities()) as profile:
        training.run(steps)
        host, device = clocks.read()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profile.export_chrome_trace(str(path))
        seen = profiled_ms(json.loads(path.read_text()))
    return (
        {stage: milliseconds / steps for stage, milliseconds in seen.items()},
        per_step(device_before, device),
        per_step(host_before, host),
    )


def stages(name: str, faults: Faults) -> Iterator[Row]:
    """Yield each stage of a run with *faults*: the profiler's time against the device clock's."""
    before = failures.count
    with probed() as clocks:
        seen, device, host = run(Training(faults), clocks)
    for stage in ("forward", "backward", "optimizer"):
        yield near(f"{name}: {stage}", device[stage], seen.get(stage, 0.0))
    yield near(f"{name}: sync", device["sync"], seen.get("sync", 0.0))
    if faults.item:
        yield near(f"{name}: data, against the host's", device["data"], host["data"])
    else:
        limit = WITHIN * sum(device.values())
        yield at_most(f"{name}: data, hidden behind the device", "ms", device["data"], limit)
    yield equal(f"{name}: steps dropped", clocks.device.recorder.dropped_steps, 0)
    yield equal(f"{name}: failures of the probe", failures.count - before, 0)


def back_pressure() -> Iterator[Row]:
    """Yield whether all steps and all time are counted while the launch queue is full."""
    with probed() as clocks:
        training = Training(Faults())
        training.run(WARM_UP)
        _, before = clocks.read()
        began = time.perf_counter()
        training.run(3 * STEPS)
        _, after = clocks.read()
        wall_ms = (time.perf_counter() - began) * 1e3
    yield equal("full queue: steps counted", after.steps - before.steps, 3 * STEPS)
    # Both from one release to another; they differ by the loop and the reading around it.
    found = sum(per_step(before, after).values())
    yield near("full queue: all stages, against the wall clock", found, wall_ms / (3 * STEPS))


def whole_graph(replays: int = 20) -> Iterator[Row]:
    """Yield whether torch.cuda.graph captures and replays a whole step with the probe attached."""
    before = failures.count
    net = Net(1024, 4).to(DEVICE)
    eager = copy.deepcopy(net)
    batch = torch.randn(1024, 1024, device=DEVICE)
    with probed() as clocks:
        _by_graph(net, batch, clocks, replays)
        host, device = clocks.read()
    _eagerly(eager, batch, WARM_UP + replays)
    pairs = zip(net.parameters(), eager.parameters(), strict=True)
    off = max(float((ours - theirs).abs().max().detach()) for ours, theirs in pairs)
    yield at_most("graph: weights, against the eager ones", "", off, 1e-4)
    yield equal("graph: failures of the probe", failures.count - before, 0)
    # The device's clock begins after the first step.
    known = device.steps + clocks.device.recorder.dropped_steps
    yield equal("graph: steps counted or dropped", known, host.steps - 1)


def _by_graph(net: Net, batch: torch.Tensor, clocks: Clocks, replays: int) -> None:
    """Train WARM_UP steps on a side stream, as captures require, then capture and replay."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        net(batch).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(replays):
        graph.replay()
        clocks.timeline.tape.note(events.STEP)


def _eagerly(net: Net, batch: torch.Tensor, steps: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        net(batch).backward()
        optimizer.step()


def graphed_callables() -> Iterator[Row]:
    """Yield the stages of a loop whose model is a pair of graphs made under the probe."""
    before = failures.count
    with probed() as clocks:
        training = Training(Faults())
        training.run(WARM_UP)
        training.model = torch.cuda.make_graphed_callables(
            Net(4096, 16).to(DEVICE), (training.batch,)
        )
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-3)
        seen, device, _ = run(training, clocks)
    for stage in ("forward", "backward", "optimizer"):
        yield near(f"graphed callables: {stage}", device[stage], seen.get(stage, 0.0))
    yield equal("graphed callables: failures of the probe", failures.count - before, 0)


def compiled(net: Net) -> nn.Module:
    """Return *net* compiled."""
    return cast(nn.Module, torch.compile(net))


def compiled_to_graphs(net: Net) -> nn.Module:
    """Return *net* compiled to kernels that torch puts into CUDA graphs."""
    return cast(nn.Module, torch.compile(net, mode="reduce-overhead"))


def fully_sharded(net: Net) -> nn.Module:
    """Return *net* in FSDP2, each layer a group of its own."""
    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)
    return net


def wrapped(name: str, wrap: Wrap) -> Iterator[Row]:
    """Yield the stages of a loop on what *wrap* makes of the net.

    FSDP2 waits for its shards in forward and in backward. The probe counts these waits as `sync`,
    the profiler's ranges include them: the check compares the sum of the three stages.
    """
    before = failures.count
    with probed() as clocks:
        seen, device, host = run(Training(Faults(item=True), wrap=wrap), clocks)
    found = device["forward"] + device["backward"] + device["sync"]
    expected = seen.get("forward", 0.0) + seen.get("backward", 0.0)
    yield near(f"{name}: forward, backward and sync", found, expected)
    yield near(f"{name}: optimizer", device["optimizer"], seen.get("optimizer", 0.0))
    yield near(f"{name}: all stages, against the host's", sum(device.values()), sum(host.values()))
    yield equal(f"{name}: steps dropped", clocks.device.recorder.dropped_steps, 0)
    yield equal(f"{name}: failures of the probe", failures.count - before, 0)


CHECKS: dict[str, Callable[[], Iterator[Row]]] = {
    "plain": lambda: stages("plain", Faults()),
    "late peer": lambda: stages("late peer", Faults(late_peer_ms=40)),
    "slow backward": lambda: stages("slow backward", Faults(slow_backward_ms=40)),
    "late loader": lambda: stages("late loader", Faults(late_loader_ms=60, item=True)),
    "hidden loader": lambda: stages("hidden loader", Faults(late_loader_ms=10)),
    "full queue": back_pressure,
    "graph": whole_graph,
    "graphed callables": graphed_callables,
    "torch.compile": lambda: wrapped("torch.compile", compiled),
    "torch.compile, CUDA graphs": lambda: wrapped("torch.compile, CUDA graphs", compiled_to_graphs),
    "FSDP2": lambda: wrapped("FSDP2", fully_sharded),
}


def made(name: str, check: Callable[[], Iterator[Row]]) -> list[Row]:
    """Return the rows of *check*; after an error, those before it and one for the error."""
    rows = []
    try:
        for row in check():
            rows.append(row)
    except RuntimeError as error:  # torch's for CUDA errors; the other checks still run.
        rows.append(told(f"{name}: {error}", passed=False))
    gc.collect()  # a DDP model and its hook hold each other
    return rows


def every_row() -> list[Row]:
    """Run every check as one rank of a two-rank DDP job whose other rank does not exist.

    The probe splits waits from backward only if a rank has peers that it may wait for.
    """
    rows: list[Row] = []
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    for name, check in CHECKS.items():
        print(f"{name} ...", flush=True)
        rows += made(name, check)
    distributed.destroy_process_group()
    return rows


def main() -> int:
    """Run the checks, print their rows, and return the exit code."""
    if not torch.cuda.is_available():
        print(NO_DEVICE, file=sys.stderr)
        return 2
    rows = every_row()
    made = {"gpu_stages": stages_table, "gpu_wraps": wraps_table, "gpu_verdict": verdict}
    write("gpu_check", rows, ("torch",), torch.cuda.get_device_name(), made)
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
