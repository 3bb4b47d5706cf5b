"""Tests of waits: the stage that each is charged to, and which of them are releases.

Run as a program, this is one of two ranks, one of them late, that wait once in each way that torch
has: one kind of call for each place in which the probe times waits. loops_job.py has the waits of
FSDP and pipelines.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.boundaries import RELEASE
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import collectives
from rank_probe.wire.stages import COMPUTE, FORWARD, OTHER, STAGES, SYNC
from tests.rank_probe.forks import Zygote
from tests.rank_probe.launch import Jobs, Ranks, leave
from tests.rank_probe.torch_hooks.conftest import attached, marks, recorded

Call = Callable[[], object]
# Returns the call that is made twice, the second time with a rank behind.
Make = Callable[[], Call]


@pytest.fixture
def waits() -> Iterator[Timeline]:
    """A timeline with the waits patched, which keeps its boundaries."""
    timeline = recorded(automatic=False)
    patches = collectives.attach(timeline)
    yield timeline
    patches.undo()


X = torch.ones(2)


@pytest.mark.parametrize(
    ("name", "arguments", "is_release"),
    [
        ("all_reduce", [X], True),
        ("all_gather", [[X.clone()], X], True),
        ("barrier", [], True),
        ("monitored_barrier", [], True),
        ("broadcast", [X, 0], False),
        ("reduce", [X, 0], False),
        ("scatter", [X, [X.clone()]], False),
        ("gather", [X, [X.clone()]], False),
    ],
)
@pytest.mark.usefixtures("alone")
def test_collective_that_lets_all_go_is_a_release(
    name: str, arguments: list[Any], is_release: bool, waits: Timeline
) -> None:
    """Only a collective that waits for all ranks is a release, where a step may begin."""
    getattr(dist, name)(*arguments)

    assert SYNC in marks(waits)
    assert any(mark & RELEASE for mark in marks(waits)) is is_release
    assert marks(waits)[-1] == (OTHER | RELEASE if is_release else OTHER)


def test_store_is_no_release_and_its_error_passes(waits: Timeline) -> None:
    """Waiting for a store key is `sync` but no release; after an error the stage resumes."""
    store = cast(Any, dist).HashStore()
    store.set("key", "value")
    store.get("key")
    store.wait(["key"])
    assert marks(waits) == [SYNC, OTHER] * 2

    waits.tape.note(events.ENTER | FORWARD)
    with pytest.raises(dist.DistStoreError):
        store.wait(["never"], timedelta(milliseconds=1))
    assert waits.state.stage == FORWARD
    assert len(waits.state.frames) == 1


@pytest.mark.skipif(
    not hasattr(AllreduceOptions(), "asyncOp"),
    reason="before torch 2.8 a synchronous all_reduce has a Work too",
)
@pytest.mark.parametrize("name", ["allreduce", "barrier"])
def test_collective_on_the_callers_stream_is_timed_as_called(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A synchronous NCCL call returns no Work and is itself the wait; an async one is not."""
    timeline, seen = recorded(automatic=False), list[int]()
    group: Any = ProcessGroup
    monkeypatch.setattr(group, name, lambda *_, **__: seen.append(timeline.state.stage))
    patches = collectives.attach(timeline)
    for asynchronous in (False, True):
        options: Any = AllreduceOptions()
        options.asyncOp = asynchronous
        getattr(group, name)(object(), opts=options)
    patches.undo()

    assert seen == [SYNC, OTHER]
    assert marks(timeline) == [SYNC, OTHER | RELEASE]


class OddWork(dist.Work):
    """A Work of somebody's own, which knows no type."""

    def _get_op_type(self) -> Any:
        raise RuntimeError("no type")


def test_work_without_a_type_is_waited_for_all_the_same(waits: Timeline) -> None:
    """A Work that raises when asked for its type is waited for without an error to the user."""
    before, calls = failures.count, list[object]()
    work, waiting = OddWork(), collectives._work(waits.tape, calls.append)
    waiting(work)

    assert calls == [work]
    assert failures.count == before + 1
    assert waits.state.stage == OTHER


def test_reducer_where_another_one_was_is_timed(waits: Timeline) -> None:
    """A new reducer's rebuild is timed even at the address of one that was already rebuilt."""
    rebuild = collectives._rebuild(waits.tape, lambda _: True)
    first = OddWork()
    rebuild(first)
    rebuild(first)
    assert marks(waits) == [SYNC, OTHER]

    address = id(first)
    del first
    second = OddWork()
    assert id(second) == address
    rebuild(second)
    assert marks(waits) == [SYNC, OTHER] * 2


DELAY = 0.1
# More than what a call itself may compute, on a machine that does other things too.
LOCAL = DELAY / 2
# Here it is rank 0, for which the others wait; elsewhere rank 1.
WAITS_FOR_RANK_0 = ("DDP buffers", "DDP bucket rebuild")


def me() -> int:
    return dist.get_rank()


def net(normalize: bool = False) -> nn.Module:
    """Return a small network, with buffers if it shall *normalize*."""
    middle = nn.BatchNorm1d(4) if normalize else nn.ReLU()
    return nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 1))


def step_of(model: nn.Module) -> Call:
    """Return a whole forward and backward of *model*."""
    return lambda: model(torch.ones(8, 4)).sum().backward()


def ddp() -> dict[str, Make]:
    """What DistributedDataParallel does in C++, with the kin of its contexts and hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def with_options(**options: Any) -> Make:
        return lambda: step_of(DistributedDataParallel(net(), **options))

    def forward_only() -> Call:
        model = DistributedDataParallel(net(normalize=True))
        step_of(model)()
        return lambda: model(torch.ones(8, 4))

    def rebuilding() -> Call:
        model = DistributedDataParallel(net())
        calls = iter((step_of(model), lambda: model(torch.ones(8, 4))))
        return lambda: next(calls)()

    def hooked() -> Call:
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return step_of(model)

    return {
        "DDP constructor": lambda: lambda: DistributedDataParallel(net()),
        "DDP": with_options(),
        "DDP find_unused_parameters": with_options(find_unused_parameters=True),
        "DDP static_graph": with_options(static_graph=True),
        "DDP buffers": forward_only,
        "DDP bucket rebuild": rebuilding,
        "DDP communication hook": hooked,
    }


class Synchronized(torch.autograd.Function):
    """Reduces over the ranks on the way back, as SyncBatchNorm does (which refuses the CPU)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        dist.all_reduce(torch.ones(1))
        return gradients[0]


def explicit() -> dict[str, Make]:
    """Waits as a training script calls them."""
    x = torch.ones(4)
    store: Any = dist.distributed_c10d._get_default_store()
    keys = map(str, itertools.count())

    def messages() -> None:
        peer = 1 - me()
        operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, x.clone(), peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    leaf, in_backward = torch.ones(2, requires_grad=True), cast(Any, Synchronized.apply)

    def waiting(wait: Callable[[str], object]) -> Call:
        return lambda: wait(next(keys)) if me() == 0 else store.set(next(keys), "set")

    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(x),
        "future of all_reduce": lambda: dist.all_reduce(x, async_op=True).get_future().wait(),
        "monitored_barrier": dist.monitored_barrier,
        "batch_isend_irecv": messages,
        "new_group": dist.new_group,
        "collective in backward": lambda: in_backward(leaf).sum().backward(),
        "Store.get": waiting(store.get),
        "Store.wait": waiting(lambda key: store.wait([key])),
    }
    return {name: lambda call=call: call for name, call in calls.items()}  # type: ignore[misc]


def functional() -> dict[str, Make]:
    """Collectives that DTensor and compiled code are made of."""
    from torch.distributed import _functional_collectives as functional

    def reduced(tensor: Tensor) -> Tensor:
        group: Any = dist.group.WORLD
        result: Tensor = functional.all_reduce(tensor, "sum", group)
        return result + 1

    def compiled() -> Call:
        function = torch.compile(reduced, backend="aot_eager", fullgraph=True)
        return lambda: function(torch.ones(4))

    return {
        "functional all_reduce": lambda: lambda: reduced(torch.ones(4)),
        "compiled all_reduce": compiled,
    }


def measured(timeline: Timeline, call: Call) -> dict[str, Any]:
    """Return the seconds of *call*, and those in each stage for *timeline*."""
    dist.barrier()
    before, began = timeline.steps.totals().spent, perf_counter()
    timeline.tape.note(events.ENTER | COMPUTE)
    call()
    timeline.tape.note(events.LEAVE)
    span, after = perf_counter() - began, timeline.steps.totals().spent
    stages = [(b - a) / 1e9 for a, b in zip(before, after, strict=True)]
    return {"span": span, "stages": dict(zip(STAGES, stages, strict=True))}


def late_call(timeline: Timeline, name: str, make: Make) -> dict[str, Any]:
    """Make the call once in step, then once with a rank late; return what the other one saw."""
    call = make()
    call()
    if me() != int(name not in WAITS_FOR_RANK_0):
        return measured(timeline, call)
    dist.barrier()
    sleep(DELAY)
    call()
    return {}


def main(folder: str, *chosen: str) -> None:
    """Measure all kinds, or those that are *chosen*; leave what this rank saw in *folder*."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with attached(Timeline(automatic=True)) as timeline:
        timeline.tape.note(events.ENTER | COMPUTE)  # Counting begins.
        timeline.tape.note(events.LEAVE)
        kinds = explicit() | functional() | ddp()
        answers = {name: late_call(timeline, name, kinds[name]) for name in chosen or kinds}
    seen = {name: answer for name, answer in answers.items() if answer}
    Path(folder, f"{me()}.json").write_text(json.dumps(seen))
    if failures.count or len(timeline.state.frames) or timeline.state.stage == SYNC:
        raise SystemExit(f"{failures.count} failures, depth {len(timeline.state.frames)}")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def calls(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """What the waiting rank of a two-rank run says of each kind."""

    def call(*kinds: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("calls")
        zygote.run(folder, "tests.rank_probe.torch_hooks.test_collectives", str(folder), *kinds)
        return {
            kind: {rank: answer}
            for rank in (0, 1)
            for kind, answer in json.loads((folder / f"{rank}.json").read_text()).items()
        }

    return Jobs(call)


def check(ranks: Ranks) -> None:
    """Allow for ranks that leave the barrier at different times and for the call's own work."""
    (answer,) = ranks.values()

    assert answer["span"] >= 0.9 * DELAY, "nobody waited"
    assert answer["span"] - answer["stages"]["sync"] < LOCAL
    for stage, seconds in answer["stages"].items():
        assert stage == "sync" or seconds < LOCAL, stage


@pytest.mark.jobs
def test_waiting_is_sync_and_nothing_else(calls: Jobs) -> None:
    """Of a call that the late rank blocks, the delay is all in `sync`."""
    assert len(calls) == 17
    for kind in calls:
        calls.check(kind, check)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
