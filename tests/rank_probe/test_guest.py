"""The probe is a guest: its API costs a script nothing, failures stay ours, patches come off.

Imports and threads notice nothing of it.
"""

import copy
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rank_probe as probe
from rank_probe import api
from rank_probe.guest.guard import failures, never_raise
from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches
from rank_probe.report import push
from rank_probe.wire.stages import OTHER, STAGES
from tests.rank_probe.sink import PATIENCE_SECONDS, Sink, listening


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    """A started probe, rank 1 of 2 of job `api`, and what it pushes."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "RANKSKEW_JOB_ID": "api"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANKSKEW_EXPORTER", f"unix:{tmp_path}/s")
    monkeypatch.setattr(push, "TIMEOUT_SECONDS", PATIENCE_SECONDS)
    with listening(tmp_path / "s") as sink:
        yield sink
        probe.finish()


@pytest.mark.parametrize(
    ("variable", "value"), [("", ""), ("RANK_PROBE", "0"), ("RANKSKEW_EXPORTER", "nonsense")]
)
def test_everything_is_a_no_op_without_a_probe(
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
) -> None:
    """A script with the calls left in runs as it did: before `start`, and if it is kept out.

    A bad RANKSKEW_EXPORTER is explained in one sentence.
    """
    if variable:
        monkeypatch.setenv(variable, value)
        probe.start()
    with probe.stage("forward"):
        assert list(probe.wrap([1, 2])) == [1, 2]
    probe.step()
    probe.finish()

    assert sink.snapshots == []
    assert len(caplog.records) == (value == "nonsense")
    said = "rank_probe is off: RANKSKEW_EXPORTER is 'nonsense'"
    assert (said in caplog.text) == (value == "nonsense")


def unreadable() -> Iterator[int]:
    raise OSError("disk")
    yield 1


def test_loop_by_hand_arrives_at_the_exporter(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    """Stages named by hand, steps and the clean end are pushed.

    An exception of the user's comes unchanged from a stage or a fetch, and that stage is left. A
    misspelt stage costs a label, not the training; the log lists the stages, once for each of
    the first.
    """
    probe.start()
    for _ in probe.wrap(range(3)):
        with probe.stage("forward"):
            pass
        with pytest.raises(ZeroDivisionError), probe.stage("optimizer"):
            _ = 1 / 0
        with probe.stage("forwrad"):
            pass
        probe.step()
    for number in range(1000):
        with probe.stage(f"step {number}"):
            pass
    with pytest.raises(OSError, match="disk"):
        list(probe.wrap(unreadable()))
    assert api._probe is not None
    assert api._probe.timeline.state.stage == OTHER
    probe.finish()
    last = sink.snapshots[-1]

    record = caplog.records[0]
    assert len(caplog.records) <= len(STAGES)
    assert "'forwrad' is not a stage" in record.getMessage()
    assert all(stage in record.getMessage() for stage in STAGES)
    assert last["steps"] == 3
    assert set(last["stage_seconds"]) == {"data", "forward", "optimizer", "other"}
    assert (last["job_id"], last["rank"], last["world_size"]) == ("api", 1, 2)
    assert last["finished"]
    assert last["rank_info"]["source"] == "manual"
    assert last["busy_seconds"] == pytest.approx(sum(last["stage_seconds"].values()))


def test_what_a_second_start_cannot_change_is_said_once(
    sink: Sink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `-m rank_probe` the probe has started before the script; what is as it was is fine."""
    probe.start(automatic=True)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        probe.start()
        probe.start(job_id="api", automatic=True)
        assert caplog.text == ""
        for _ in range(2):
            probe.start(job_id="mine", peer_group="p", measure=lambda _: (1, None, None))
    probe.step()  # From now on it is known which rank it is.
    probe.finish()

    (record,) = caplog.records
    assert "start() ignores its job_id, peer_group, measure" in record.getMessage()
    assert "RANKSKEW_JOB_ID" in record.getMessage()
    assert sink.snapshots[-1]["job_id"] == "api"


class Loader(list[int]):
    """One with an attribute, and its own way of being copied."""

    batch_size = 7

    def __deepcopy__(self, memo: dict[int, Any]) -> list[int]:
        return [*self, 4]

    def __getnewargs_ex__(self) -> None:
        raise AssertionError("for the loader, not for what wraps it")


def test_wrapped_loader_is_still_the_loader() -> None:
    """Length, attributes and exceptions are the loader's own.

    A copy, also one through pickle, is a timed loader of the same batches.
    """
    wrapped = probe.wrap(Loader([1, 2, 3]))
    assert (len(wrapped), wrapped.batch_size) == (3, 7)
    with pytest.raises(TypeError):
        len(probe.wrap(iter([])))

    plain = probe.wrap([1, 2, 3])
    copies = [copy.copy(plain), copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))]
    for again in (*copies, copy.deepcopy(wrapped)):
        assert type(again) is api.TimedLoader
    assert [list(again) for again in copies] == [[1, 2, 3]] * 3
    assert list(copy.deepcopy(wrapped)) == [1, 2, 3, 4]


def test_import_needs_nothing() -> None:
    """The base install imports with neither torch nor any other package there."""
    program = """
import sys
class OnlyStandardLibrary:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"rank_probe"}:
            raise ImportError(f"{name} is not in the standard library")
sys.meta_path.insert(0, OnlyStandardLibrary())
import rank_probe, rank_probe.__main__
with rank_probe.stage("data"): pass
print(rank_probe.__version__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stderr == ""
    assert done.stdout.strip() == probe.__version__


def test_failures_are_counted_and_only_the_first_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A probe that breaks in every step raises nothing, and does not fill the user's log.

    Ctrl-C inside the probe still stops the program.
    """

    @never_raise
    def broken(of: type[BaseException], *_: object) -> int:
        raise of

    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert broken(RuntimeError) is broken(RuntimeError, 1) is None
        assert never_raise(functools.partial(importlib.import_module, "none"))(None) is None
    with pytest.raises(KeyboardInterrupt):
        broken(KeyboardInterrupt)

    assert failures.count == 3
    (record,) = caplog.records
    assert "training continues" in record.getMessage()


class Base:
    def greet(self) -> str:
        return "hello"

    @staticmethod
    def name() -> str:
        return "base"


class Inherits(Base):
    """Module level, so that pickle finds it."""


def louder(original: Callable[..., str]) -> Any:
    def loud(*args: Any) -> str:
        return original(*args).upper()

    return loud


def test_what_was_there_is_put_back() -> None:
    """An inherited method is no attribute of the class or object; a static one is static again.

    A trainer that is pickled or deep-copied while it is timed saves itself, not the first.
    """
    patched, patches = Inherits(), Patches()
    stored = vars(Base)["name"]
    patches.wrap(Base, "name", lambda original: lambda *_: original().upper())
    for owner in (Inherits, patched):
        patches.wrap(owner, "greet", louder)
    assert (Inherits().greet(), Base().greet(), Base().name()) == ("HELLO", "hello", "BASE")
    copies: list[Any] = [copy.deepcopy(patched), pickle.loads(pickle.dumps(patched))]
    for copied in copies:
        assert copied.greet.__self__ is copied
    patches.undo()

    assert "greet" not in vars(Inherits)
    assert vars(patched) == {}
    assert vars(Base)["name"] is stored
    assert (Inherits().greet(), Base.name()) == ("hello", "base")


NAME = "imported_later"


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ModuleType]]:
    """What is given of a module that nobody has imported yet."""
    (tmp_path / f"{NAME}.py").write_text("def answer(): return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield []
    sys.modules.pop(NAME, None)
    assert sys.meta_path == before


def test_module_is_given_once_it_has_run(seen: list[ModuleType]) -> None:
    """Each callback gets the complete module on import, or at once; a reload calls none.

    A cancelled callback is not called. An import that fails raises its usual error. A callback that
    raises counts as a failure of the probe.
    """
    when_imported(NAME, lambda _: 1 / 0)
    for _ in range(2):
        when_imported(NAME, seen.append)
    when_imported(NAME, lambda module: seen.extend([module] * 100))()
    cancel = when_imported("no_such_module", seen.append)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")
    cancel()
    module = importlib.import_module(NAME)
    importlib.import_module(NAME)
    importlib.reload(module)
    assert seen == [module, module]
    assert failures.count == 1

    when_imported(NAME, seen.append)()
    assert seen == [module] * 3
    assert module.answer() == 42
    assert "exec_module" not in vars(module.__loader__)


def test_looking_for_a_module_is_not_importing_it(seen: list[ModuleType]) -> None:
    """Who asks whether it is installed sees its own loader, and may execute a copy of it."""
    when_imported(NAME, seen.append)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert "42" in (spec.loader.get_source(NAME) or "")
    beside = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(beside)
    assert beside.answer() == 42
    assert seen == []

    module = importlib.import_module(NAME)
    assert seen == [module]
    assert type(module.__loader__) is type(spec.loader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "42" in inspect.getsource(module)
