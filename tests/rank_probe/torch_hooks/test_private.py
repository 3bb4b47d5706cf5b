"""The table of private names is true of this torch, and the probe works without each of them."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.probe import Probe
from rank_probe.torch_hooks import private
from rank_probe.torch_hooks.cuda_events import CudaEvents
from rank_probe.torch_hooks.private import TABLE, Private, absent, absent_from, find, sentences
from rank_probe.torch_hooks.store import obstacle
from rank_probe.wire.no_join import OTHER_STORE

IN_MEMORY = [row for row in TABLE if not row.is_read]
HERE = [row for row in IN_MEMORY if row.is_in(torch.__version__)]


def imported(row: Private) -> Any | None:
    """Return the module of *row*; None if this torch has none of that name."""
    try:
        return importlib.import_module(row.name.partition(":")[0])
    except ModuleNotFoundError:
        return None


@pytest.mark.parametrize("row", IN_MEMORY, ids=lambda row: row.name)
def test_row_is_right_about_this_torch(row: Private) -> None:
    """Its versions are those that the table says."""
    if row.on_cuda and torch.version.cuda is None:
        pytest.skip("this torch was built without CUDA")
    module = imported(row)
    found = None if module is None else find(module, row.name.partition(":")[2])

    assert (found is not None) == row.is_in(torch.__version__)


@pytest.mark.parametrize("row", [row for row in TABLE if row.is_read], ids=lambda row: row.name)
def test_what_is_read_is_in_the_sources(row: Private) -> None:
    """Torch still sets the attribute, or still looks for it."""
    module = imported(row)

    assert module is not None
    assert row.name.partition(":")[2] in inspect.getsource(module)


# Py_TPFLAGS_HEAPTYPE
HEAP_TYPE: Final = 1 << 9


def is_immutable(owner: Any) -> bool:
    """Whether it is a type that is written in C."""
    return isinstance(owner, type) and not owner.__flags__ & HEAP_TYPE


def take_away(monkeypatch: pytest.MonkeyPatch, module: Any, path: str) -> None:
    """Delete what is at *path*; with what holds it, if that is an object in C."""
    parent, _, name = path.rpartition(".")
    owner = find(module, parent) if parent else module
    if name in getattr(owner, "__dict__", ()) and not is_immutable(owner):
        monkeypatch.delattr(owner, name)
    else:
        take_away(monkeypatch, module, parent)


@pytest.fixture
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Private]:
    """Take the name of a row away from torch, and what would do instead of it."""
    row: Private = request.param
    for each in (row, *(other for other in HERE if other.name == row.instead)):
        take_away(monkeypatch, imported(each), each.name.partition(":")[2])
    yield row
    monkeypatch.undo()


@pytest.mark.parametrize(
    "missing",
    [row for row in HERE if not row.on_cuda],
    indirect=True,
    ids=lambda row: row.name,
)
def test_probe_attaches_without_it(missing: Private) -> None:
    """No error, but a name that is told; all other hooks are there, and go again."""
    wait = torch.distributed.Work.wait
    probe = Probe(automatic=True, environment={})
    probe.attach()
    try:
        assert missing.without in sentences(absent())
        assert failures.count == 0
        if "no join" in missing.without:
            assert obstacle() == OTHER_STORE
    finally:
        probe.detach()
    assert torch.distributed.Work.wait == wait


def test_device_events_need_no_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The public ones do the same, for more time."""

    class Stream:
        cuda_stream = 7

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: Any) -> None:
            assert isinstance(stream, Stream)

    for name in ("_cuda_getCurrentRawStream", "_cuda_isCurrentStreamCapturing", "_CudaEventBase"):
        monkeypatch.delattr(torch._C, name, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)

    events = CudaEvents()
    assert events.record(events.new()) == 7
    assert events.is_capturing()


def test_nothing_is_missed_here() -> None:
    """This torch is one that the table knows, whatever of it was imported."""
    assert absent() == absent_from(torch.__version__)


def test_old_torch_lacks_what_came_later() -> None:
    """Told without importing it; a name under which it has the same is no loss."""
    named = [row.name.rpartition(":")[2] for row in absent_from("2.4.1+cu121")]

    assert named == [
        "_FunctionBase._input_metadata",
        "stage_backward_input",
        "stage_backward_weight",
    ]
    assert len(sentences(absent_from("2.4.1+cu121"))) == 2
    assert absent_from("2.15.0") == []
    assert private.minor("unknown") == (0, 0)


def test_each_instead_is_a_row() -> None:
    """A misspelt one would let a loss go untold, or tell one that is none."""
    assert {row.instead for row in TABLE} - {row.name for row in TABLE} - {""} == set()
