"""Tests of the waits: what is a release, and where each goes."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, ProcessGroup

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.boundaries import RELEASE
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import collectives
from rank_probe.wire.stages import FORWARD, OTHER, SYNC
from tests.rank_probe.forks import Zygote
from tests.rank_probe.launch import Jobs, Ranks
from tests.rank_probe.torch_hooks.collectives_job import DELAY
from tests.rank_probe.torch_hooks.conftest import marks, recorded

C10D: Any = dist


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
    """Its end may be where a step begins; but not a root's that does not wait for the others."""
    getattr(dist, name)(*arguments)

    assert SYNC in marks(waits)
    assert any(mark & RELEASE for mark in marks(waits)) is is_release
    assert marks(waits)[-1] == (OTHER | RELEASE if is_release else OTHER)


def test_store_is_no_release_and_its_error_passes(waits: Timeline) -> None:
    """Who waits for a key waits for whoever sets it; the stage around the wait goes on."""
    store = C10D.HashStore()
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
def test_collective_on_the_callers_stream_is_timed_as_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NCCL gives a synchronous call no Work: the call is the wait, an asynchronous one is not."""
    timeline, seen = recorded(automatic=False), list[int]()
    group: Any = ProcessGroup
    monkeypatch.setattr(group, "allreduce", lambda *_: seen.append(timeline.state.stage))
    patches = collectives.attach(timeline)
    for asynchronous in (False, True):
        options: Any = AllreduceOptions()
        options.asyncOp = asynchronous
        group.allreduce(object(), [], options)
    patches.undo()

    assert seen == [SYNC, OTHER]
    assert marks(timeline) == [SYNC, OTHER | RELEASE]


class OddWork(dist.Work):
    """A Work of somebody's own, which knows no type."""

    def _get_op_type(self) -> Any:
        raise RuntimeError("no type")


def test_work_without_a_type_is_waited_for_all_the_same(waits: Timeline) -> None:
    """What a Work refuses to say costs the user nothing."""
    before, calls = failures.count, list[object]()
    work, waiting = OddWork(), collectives._work(waits.tape, calls.append)
    waiting(work)

    assert calls == [work]
    assert failures.count == before + 1
    assert waits.state.stage == OTHER


# More than what a call itself may compute, on a machine that does other things too.
LOCAL = DELAY / 2
KINDS = 17


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

    assert answer["span"] >= 0.9 * DELAY, "nobody waited"
    assert answer["span"] - answer["stages"]["sync"] < LOCAL
    for stage, seconds in answer["stages"].items():
        assert stage == "sync" or seconds < LOCAL, stage


@pytest.mark.jobs
def test_waiting_is_sync_and_nothing_else(calls: Jobs) -> None:
    """Of a call that the late rank blocks, the delay is all in `sync`."""
    assert len(calls) == KINDS
    wrong = {}
    for kind in calls:
        try:
            calls.check(kind, check)
        except AssertionError as error:
            wrong[kind] = str(error)

    assert not wrong
