"""Tests of the waits: what is a release, and where each goes, with torch.profiler as witness."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup

from rank_probe.measure import events
from rank_probe.measure.boundaries import RELEASE
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import collectives
from rank_probe.wire.stages import FORWARD, OTHER, SYNC
from tests.rank_probe.forks import Zygote
from tests.rank_probe.launch import Jobs, Ranks
from tests.rank_probe.torch_hooks.collectives_job import DELAY
from tests.rank_probe.torch_hooks.hooked import marks, recorded

C10D: Any = dist


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """A timeline of a rank alone in its job, with the waits patched."""
    dist.init_process_group("gloo", store=C10D.HashStore(), rank=0, world_size=1)
    timeline = recorded(automatic=False)
    patches = collectives.attach(timeline)
    yield timeline
    patches.undo()
    dist.destroy_process_group()


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
def test_collective_that_lets_all_go_is_a_release(
    name: str, arguments: list[Any], is_release: bool, timeline: Timeline
) -> None:
    """Its end may be where a step begins; but not a root's that does not wait for the others."""
    getattr(dist, name)(*arguments)

    assert SYNC in marks(timeline)
    assert any(mark & RELEASE for mark in marks(timeline)) is is_release
    assert marks(timeline)[-1] == (OTHER | RELEASE if is_release else OTHER)


def test_store_is_no_release(timeline: Timeline) -> None:
    """Who waits for a key waits for whoever sets it."""
    store = C10D.HashStore()
    store.set("key", "value")
    store.get("key")
    store.wait(["key"])

    assert marks(timeline) == [SYNC, OTHER] * 2


def test_collective_on_the_callers_stream_is_timed_as_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL gives a synchronous call no Work: the call is the wait, an asynchronous one is not."""
    if not hasattr(AllreduceOptions(), "asyncOp"):
        pytest.skip("before torch 2.8 a synchronous all_reduce has a Work too")
    timeline = recorded(automatic=False)
    seen: list[int] = []
    group: Any = ProcessGroup

    def allreduce(_group: object, _tensors: object, _options: object) -> None:
        seen.append(timeline.state.stage)

    monkeypatch.setattr(ProcessGroup, "allreduce", allreduce)
    patches = collectives.attach(timeline)
    for asynchronous in (False, True):
        options: Any = AllreduceOptions()
        options.asyncOp = asynchronous
        group.allreduce(object(), [], options)
    patches.undo()

    assert seen == [SYNC, OTHER]
    assert marks(timeline) == [SYNC, OTHER | RELEASE]


def test_error_in_a_collective_passes_and_the_wait_ends(timeline: Timeline) -> None:
    """The user's exception comes out as it is, and the stage around it goes on."""
    timeline.tape.note(events.ENTER | FORWARD)
    with pytest.raises(dist.DistStoreError):
        C10D.HashStore().wait(["never"], timedelta(milliseconds=1))

    assert timeline.state.stage == FORWARD
    assert len(timeline.state.frames) == 1


LOCAL = 0.03  # more than what a call itself may compute, on a machine that does other things too
KINDS = 44


@pytest.fixture(scope="module")
def calls(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """What the waiting rank of a two-rank run says of each kind."""

    def call(*kinds: str) -> dict[str, Ranks]:
        folder = tmp_path_factory.mktemp("calls")
        module = "tests.rank_probe.torch_hooks.collectives_job"
        zygote.run(folder, module, *kinds, ANSWERS=str(folder))
        return {
            kind: {rank: answer}
            for rank in (0, 1)
            for kind, answer in json.loads((folder / f"{rank}.json").read_text()).items()
        }

    return Jobs(call)


def check(ranks: Ranks) -> None:
    """The ranks do not leave the barrier before it at the same moment, and a call computes."""
    (answer,) = ranks.values()
    outside = answer["span"] - answer["stages"]["sync"]

    assert answer["span"] >= 0.9 * DELAY, "the profiler saw nobody wait"
    assert answer["stages"]["sync"] >= 0.95 * (answer["span"] - LOCAL)
    assert outside < LOCAL
    for stage, seconds in answer["stages"].items():
        assert stage == "sync" or seconds < LOCAL, stage


@pytest.mark.jobs
def test_waiting_is_sync_and_nothing_else(calls: Jobs) -> None:
    """Of a call that the profiler sees blocked by the late rank, the delay is all in `sync`."""
    assert len(calls) == KINDS
    wrong = {}
    for kind in calls:
        try:
            calls.check(kind, check)
        except AssertionError as error:
            wrong[kind] = str(error)

    assert not wrong
