"""Tests of the checkpoint and h2d stages on the real functions, with `meta` as the accelerator."""

import importlib
import io
import operator
import sys
import threading
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
from rank_probe.wire.stages import CHECKPOINT, DATA, H2D, OTHER, SYNC
from tests.rank_probe.fakes import elsewhere
from tests.rank_probe.torch_hooks.conftest import marks, recorded

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


def is_over(timeline: Timeline) -> bool:
    """Whether nothing is left of a checkpoint."""
    return timeline.state.stage == OTHER and not timeline.state.frames


class Noting:
    """State that notes the stage that it is written in, and whether on the main thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.seen: list[tuple[int, bool]] = []

    def note(self, *_: object) -> None:
        mine = threading.current_thread() is threading.main_thread()
        self.seen.append((self.timeline.state.stage, mine))

    load_state_dict = note

    def __reduce__(self) -> Any:
        self.note()
        return (dict, ())

    def state_dict(self) -> dict[str, Any]:
        self.note()
        return {"weight": torch.ones(2)}


@pytest.mark.parametrize("zip_file", [True, False])
def test_torch_save_is_checkpoint(timeline: Timeline, zip_file: bool) -> None:
    """By whichever name and in whichever format; afterwards the loop goes on as before."""
    for by_its_name in (torch.save, torch.serialization.save, TORCH_SAVE):
        state = Noting(timeline)
        by_its_name(state, io.BytesIO(), _use_new_zipfile_serialization=zip_file)
        assert state.seen == [(CHECKPOINT, True)]
        assert is_over(timeline)

    assert marks(timeline) == [CHECKPOINT, OTHER] * 3


class Untouchable:
    """Stands in for a framework's object, whose method looks at it first thing: in which stage?"""

    def __init__(self, timeline: Timeline) -> None:
        self.__dict__["stage"] = lambda: timeline.state.stage

    def __getattr__(self, name: str) -> Any:
        raise LookupError(self.stage())


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("transformers.modeling_utils", "PreTrainedModel.save_pretrained"),
        ("lightning.pytorch.trainer.trainer", "Trainer.save_checkpoint"),
    ],
)
def test_save_of_a_framework_is_checkpoint_from_its_beginning(
    timeline: Timeline, module: str, path: str
) -> None:
    """Not only what it writes with torch or safetensors; the integrations' jobs save for real."""
    method: Any = operator.attrgetter(path)(pytest.importorskip(module))

    with pytest.raises(LookupError, match=f"^{CHECKPOINT}$"):
        method(Untouchable(timeline), "folder")
    assert is_over(timeline)


def test_reading_data_with_torch_load_is_data(timeline: Timeline, tmp_path: Path) -> None:
    """torch.load within a fetch stays the loader's."""
    torch.save(torch.ones(1), tmp_path / "rows.pt")
    marks(timeline).clear()
    timeline.tape.note(events.FETCH)
    torch.load(tmp_path / "rows.pt")
    timeline.tape.note(events.EXHAUSTED)

    assert [mark & 15 for mark in marks(timeline)] == [DATA, OTHER]


@pytest.mark.filterwarnings("ignore")  # torch warns that there is no process group
def test_distributed_checkpoint_is_checkpoint(timeline: Timeline, tmp_path: Path) -> None:
    """Saving and loading, also by names imported before the probe."""
    for write, read in ((save, load), (dcp.save, dcp.load)):
        state = Noting(timeline)
        write({"model": state}, checkpoint_id=tmp_path)
        read({"model": state}, checkpoint_id=tmp_path)

        assert state.seen[0] == (CHECKPOINT, True)
        assert CHECKPOINT in marks(timeline)[-4:]
        assert is_over(timeline)


@pytest.mark.usefixtures("alone")  # It asks for a process group.
@pytest.mark.filterwarnings("ignore")  # torch warns that it overwrites
def test_only_what_blocks_of_an_async_save_is_checkpoint(
    timeline: Timeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    for write in (async_save, dcp.async_save):
        state = Noting(timeline)
        may_write.clear()
        done: Future[Any] = write({"model": state}, checkpoint_id=tmp_path)
        before = list(marks(timeline))
        may_write.set()
        done.result(30)

        assert state.seen == [(CHECKPOINT, True)]
        assert marks(timeline) == before
    assert wrote_in == [OTHER, OTHER]


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


def test_package_imported_after_the_probe_is_restored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported for its sake; a package takes over the replacements, and gives them back.

    It copies what its modules hold when it is imported, as torch.distributed.checkpoint does.
    """
    (tmp_path / "saves_all").mkdir()
    (tmp_path / "saves_all" / "saver.py").write_text("def save(): return 'saved'")
    (tmp_path / "saves_all" / "__init__.py").write_text("from saves_all.saver import save")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        checkpoints, "PLACES", (("saves_all.saver", ("save",)), ("saves_all", ("save",)))
    )
    timeline = recorded(automatic=True)
    patches = checkpoints.attach(timeline)
    assert "saves_all" not in sys.modules
    package = importlib.import_module("saves_all")
    for times in (1, 1):
        assert package.save is package.saver.save
        assert package.save() == "saved"
        assert marks(timeline) == [CHECKPOINT, OTHER] * times
        patches.undo()


META = torch.device("meta")
ROWS = torch.ones(2)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Timeline]:
    """A timeline that takes `meta` for an accelerator, beside those that are."""
    monkeypatch.setattr(copies, "ACCELERATORS", {"meta", *copies.ACCELERATORS})
    timeline = recorded(automatic=True)
    patches = copies.attach(timeline)
    yield timeline
    patches.undo()


@pytest.mark.parametrize(
    "name",
    [
        "accelerate.data_loader:send_to_device",
        "lightning.fabric.wrappers:move_data_to_device",
        "lightning.pytorch.strategies.strategy:move_data_to_device",
        "transformers.tokenization_utils_base:BatchEncoding.to",
    ],
)
@pytest.mark.parametrize("device", ["meta:0", META])
def test_frameworks_that_move_a_batch_are_h2d(copied: Timeline, name: str, device: Any) -> None:
    """What they call on a batch is one copy; to the CPU it is none."""
    module, _, path = name.partition(":")
    batch: Any = {"rows": ROWS, "mask": ROWS}
    if path == "BatchEncoding.to":
        batch = importlib.import_module(module).BatchEncoding(batch)
    move = operator.attrgetter(path)(importlib.import_module(module))
    move(batch, torch.device("cpu"))
    assert move(batch, device)["rows"].is_meta
    assert move(batch, device=device)["mask"].is_meta

    assert marks(copied) == [H2D, OTHER] * 2


def test_waits_and_other_threads_are_not_h2d(copied: Timeline) -> None:
    """What a collective copies for itself is part of it; a thread that copies ahead is not ours.

    A number is an accelerator's: torch does not know which before it asks the driver.
    """
    accelerate = importlib.import_module("accelerate.data_loader")
    copied.tape.note(events.WAIT)
    accelerate.send_to_device([ROWS], META)
    copied.tape.note(events.WAITED)
    elsewhere(lambda: accelerate.send_to_device([ROWS], META))
    assert marks(copied) == [SYNC, OTHER]

    before = failures.count
    with pytest.raises(RuntimeError):  # There is no driver here.
        accelerate.send_to_device([ROWS], 0)
    assert marks(copied) == [SYNC, OTHER, H2D, OTHER]
    assert failures.count == before
