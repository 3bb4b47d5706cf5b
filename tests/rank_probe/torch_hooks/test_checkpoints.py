"""Tests of the checkpoint stage on the real functions."""

import importlib
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from rank_probe.measure import events
from rank_probe.measure.timeline import Timeline
from rank_probe.torch_hooks import checkpoints
from rank_probe.wire.stages import CHECKPOINT, DATA, OTHER, SYNC
from tests.rank_probe.torch_hooks.recorded import marks, recorded

TORCH_SAVE = torch.save
dcp: Any = importlib.import_module("torch.distributed.checkpoint")  # it types none of its exports
async_save, load, save = dcp.async_save, dcp.load, dcp.save
SAVERS = "torch.distributed.checkpoint.state_dict_saver"


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    """A timeline with checkpoints patched, until the test is over."""
    timeline = recorded(automatic=True)
    patches = checkpoints.attach(timeline)
    yield timeline
    patches.undo()


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one, which an asynchronous save asks for."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Noting:
    """State that notes the stage, and the thread, that it is written in."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.seen: list[tuple[int, bool]] = []

    def note(self) -> None:
        mine = threading.current_thread() is threading.main_thread()
        self.seen.append((self.timeline.state.stage, mine))

    def __reduce__(self) -> Any:
        self.note()
        return (dict, ())

    def state_dict(self) -> dict[str, Any]:
        self.note()
        return {"weight": torch.ones(2)}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        self.note()


@pytest.mark.parametrize("name", ["torch.save", "torch.serialization.save", "imported before"])
@pytest.mark.parametrize("zip_file", [True, False])
def test_torch_save_is_checkpoint(timeline: Timeline, name: str, zip_file: bool) -> None:
    """By whichever name and in whichever format; afterwards the loop goes on as before."""
    save_it = {
        "torch.save": torch.save,
        "torch.serialization.save": torch.serialization.save,
        "imported before": TORCH_SAVE,
    }[name]
    state = Noting(timeline)
    save_it(state, io.BytesIO(), _use_new_zipfile_serialization=zip_file)

    assert state.seen == [(CHECKPOINT, True)]
    assert timeline.state.stage == OTHER
    assert len(timeline.state.frames) == 0
    assert marks(timeline) == [CHECKPOINT, OTHER]


def test_reading_data_with_torch_load_is_data(timeline: Timeline, tmp_path: Path) -> None:
    """torch.load within a fetch stays the loader's."""
    torch.save(torch.ones(1), tmp_path / "rows.pt")
    marks(timeline).clear()
    timeline.tape.note(events.FETCH)
    torch.load(tmp_path / "rows.pt")
    timeline.tape.note(events.EXHAUSTED)

    assert [mark & 15 for mark in marks(timeline)] == [DATA, OTHER]


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.filterwarnings("ignore")  # torch warns that there is no process group
def test_distributed_checkpoint_is_checkpoint(
    timeline: Timeline, tmp_path: Path, by_name: bool
) -> None:
    """Saving and loading, also by names imported before the probe."""
    write, read = (save, load) if by_name else (dcp.save, dcp.load)
    state = Noting(timeline)
    write({"model": state}, checkpoint_id=tmp_path)
    read({"model": state}, checkpoint_id=tmp_path)

    first, *_ = state.seen
    assert first == (CHECKPOINT, True)
    assert CHECKPOINT in marks(timeline)[-4:]
    assert timeline.state.stage == OTHER
    assert len(timeline.state.frames) == 0


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.filterwarnings("ignore")  # torch warns that there is no process group
def test_only_what_blocks_of_an_async_save_is_checkpoint(
    timeline: Timeline, group: None, tmp_path: Path, by_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another thread writes, the training thread is back in its own stage."""
    may_write, wrote_in = threading.Event(), []
    saver: Any = sys.modules[SAVERS]
    original = saver._save_state_dict

    def late(*args: Any, **kwargs: Any) -> Any:
        may_write.wait(30)
        wrote_in.append(timeline.state.stage)
        return original(*args, **kwargs)

    monkeypatch.setattr(saver, "_save_state_dict", late)
    state = Noting(timeline)
    write = async_save if by_name else dcp.async_save
    try:
        done = write({"model": state}, checkpoint_id=tmp_path)
    finally:
        may_write.set()
    assert isinstance(done, Future)
    before = marks(timeline)
    done.result(30)

    assert state.seen == [(CHECKPOINT, True)]
    assert wrote_in == [OTHER]
    assert marks(timeline) == before


def test_waits_within_a_checkpoint_stay_sync(timeline: Timeline) -> None:
    """Waiting for the other ranks while saving is not the checkpoint's time, nor the reverse."""

    class Waits:
        def __reduce__(self) -> Any:
            timeline.tape.note(events.WAIT)
            torch.save(1, io.BytesIO())
            timeline.tape.note(events.WAITED)
            return (dict, ())

    torch.save(Waits(), io.BytesIO())

    assert marks(timeline) == [CHECKPOINT, SYNC, CHECKPOINT, OTHER]


def test_user_errors_pass(timeline: Timeline) -> None:
    """A state that cannot be saved raises as ever, and the clock is right afterwards."""
    with pytest.raises(AttributeError, match="local"):
        torch.save(lambda: None, io.BytesIO())

    assert timeline.state.stage == OTHER
    assert len(timeline.state.frames) == 0


def test_other_threads_are_not_timed(timeline: Timeline) -> None:
    """A thread that saves in the background leaves no boundary."""
    thread = threading.Thread(target=lambda: torch.save(1, io.BytesIO()))
    thread.start()
    thread.join()

    assert marks(timeline) == []


def test_functions_still_pickle_by_name(timeline: Timeline) -> None:
    """Some loops hand torch.save to an executor."""
    for function in (torch.save, dcp.save):
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.filterwarnings("ignore")  # importing it again warns of what it registers twice
def test_modules_that_are_imported_later_are_patched_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported for the probe's sake, and afterwards no name is left replaced."""
    importlib.import_module("safetensors.torch")
    monkeypatch.delitem(sys.modules, "safetensors.torch")
    patches = checkpoints.attach(recorded(automatic=True))
    assert "safetensors.torch" not in sys.modules
    module = importlib.import_module("safetensors.torch")
    during = module.save_file
    patches.undo()

    assert hasattr(during, "__wrapped__")
    assert module.save_file is during.__wrapped__


def test_package_imported_after_the_probe_is_restored_too() -> None:
    """It takes over the replacements when it is imported, and gives them back."""
    code = (
        "from rank_probe.torch_hooks import checkpoints\n"
        "from rank_probe.measure.timeline import Timeline\n"
        "patches = checkpoints.attach(Timeline(automatic=True))\n"
        "import torch.distributed.checkpoint as dcp\n"
        "saver = dcp.state_dict_saver\n"
        "assert dcp.save is saver.save and saver.save.__code__.co_name == 'checkpoint'\n"
        "patches.undo()\n"
        "assert dcp.save is saver.save and saver.save.__code__.co_name != 'checkpoint'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr[-3000:]


def test_undo_restores_every_name() -> None:
    """The packages and the modules behind them hold torch's own functions again."""
    checkpoints.attach(recorded(automatic=True)).undo()

    assert torch.save is torch.serialization.save is TORCH_SAVE
    assert dcp.save is sys.modules[SAVERS].save is save
