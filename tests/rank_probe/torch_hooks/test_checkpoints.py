"""Tests of the checkpoint and h2d stages on the real functions, with `meta` as the accelerator."""

import importlib
import io
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import checkpoints, copies
from rank_probe.wire.stages import CHECKPOINT, H2D, OTHER, SYNC
from tests.rank_probe.fakes import elsewhere
from tests.rank_probe.torch_hooks.conftest import marks, recorded

TORCH_SAVE = torch.save
dcp: Any = importlib.import_module("torch.distributed.checkpoint")  # it types none of its exports
async_save, load, save = dcp.async_save, dcp.load, dcp.save


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """A timeline with checkpoints patched, until the test is over."""
    timeline = recorded(automatic=True)
    patches = checkpoints.attach(timeline)
    yield timeline
    patches.undo()


class Noting:
    """State that notes the stage in which it is written, by pickle or as a part of another."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.seen: list[int] = []

    def note(self, *_: object) -> None:
        self.seen.append(self.timeline.state.stage)

    load_state_dict = note

    def __reduce__(self) -> Any:
        self.note()
        return (dict, ())

    def state_dict(self) -> dict[str, Any]:
        self.note()
        return {"weight": torch.ones(2)}


@pytest.mark.parametrize("zip_file", [True, False])
def test_torch_save_is_checkpoint(timeline: Timeline, zip_file: bool) -> None:
    """torch.save is `checkpoint` under every name and format; the loop's stage then resumes."""
    for by_its_name in (torch.save, torch.serialization.save, TORCH_SAVE):
        state = Noting(timeline)
        by_its_name(state, io.BytesIO(), _use_new_zipfile_serialization=zip_file)
        assert state.seen == [CHECKPOINT]

    assert marks(timeline) == [CHECKPOINT, OTHER] * 3
    assert not timeline.state.frames


@pytest.mark.usefixtures("alone")  # An asynchronous save asks for a process group.
@pytest.mark.filterwarnings("ignore")  # torch warns that it overwrites
def test_distributed_checkpoint_is_checkpoint(timeline: Timeline, tmp_path: Path) -> None:
    """Saving and loading, also by names imported before the probe; what blocks of async_save."""
    for write, read in ((save, load), (dcp.save, dcp.load)):
        state = Noting(timeline)
        write({"model": state}, checkpoint_id=tmp_path)
        read({"model": state}, checkpoint_id=tmp_path)
        assert state.seen[0] == CHECKPOINT
        assert CHECKPOINT in marks(timeline)[-4:]
    for write in (async_save, dcp.async_save):
        state = Noting(timeline)
        done: Future[Any] = write({"model": state}, checkpoint_id=tmp_path)
        before = list(marks(timeline))
        done.result(30)
        assert state.seen == [CHECKPOINT]
        assert marks(timeline) == before  # What another thread writes is not timed.

    assert timeline.state.stage == OTHER
    assert not timeline.state.frames


META = torch.device("meta")


def test_what_moves_a_batch_is_h2d(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that the training thread moves to an accelerator is `h2d`, except in a collective.

    A device number always means an accelerator; torch must ask the driver which one.
    """
    monkeypatch.setattr(copies, "ACCELERATORS", {"meta", *copies.ACCELERATORS})
    timeline = recorded(automatic=True)
    patches = copies.attach(timeline)
    move: Any = importlib.import_module("accelerate.data_loader").send_to_device
    batch = {"rows": torch.ones(2)}
    move(batch, torch.device("cpu"))
    assert marks(timeline) == []
    for device in ("meta:0", META):
        assert move(batch, device)["rows"].is_meta
        assert move(batch, device=device)["rows"].is_meta
    assert marks(timeline) == [H2D, OTHER] * 4

    marks(timeline).clear()
    timeline.tape.note(events.WAIT)
    move(batch, META)
    timeline.tape.note(events.WAITED)
    elsewhere(lambda: move(batch, META))
    assert marks(timeline) == [SYNC, OTHER]
    with pytest.raises(RuntimeError):  # There is no driver here.
        move(batch, 0)
    assert marks(timeline) == [SYNC, OTHER, H2D, OTHER]
    assert failures.count == 0
    patches.undo()
