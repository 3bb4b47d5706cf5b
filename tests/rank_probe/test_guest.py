"""Tests of the guest: failures stay ours, patches come off, imports and threads notice nothing."""

import copy
import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rank_probe.guest import yielding
from rank_probe.guest.guard import failures, never_raise
from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches, attaching
from rank_probe.guest.yielding import TURN_SECONDS, WORK_SECONDS, give_way, has_waited


def test_failures_are_counted_and_only_the_first_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that breaks in every step raises nothing, and does not fill the user's log."""

    @never_raise
    def broken() -> int:
        raise RuntimeError("ours")

    monkeypatch.setattr(failures, "count", 0)
    with caplog.at_level(logging.WARNING, "rank_probe"):
        assert broken() is broken() is None

    assert failures.count == 2
    assert len(caplog.records) == 1
    assert "training continues" in caplog.text


@pytest.mark.parametrize("theirs", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass(theirs: type[BaseException]) -> None:
    """Ctrl-C inside the probe still stops the program."""

    @never_raise
    def interrupted() -> None:
        raise theirs

    with pytest.raises(theirs):
        interrupted()


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


def more(original: Callable[..., str]) -> Any:
    return lambda self: original(self) + "?"


def test_what_was_there_is_put_back() -> None:
    """An inherited method is no attribute of the class or object; a static one is static again."""
    patched, patches = Inherits(), Patches()
    stored = vars(Base)["name"]
    patches.wrap(Base, "name", lambda original: lambda *_: original().upper())
    for owner in (Inherits, patched):
        patches.wrap(owner, "greet", louder)
    assert (Inherits().greet(), Base().greet(), Base().name()) == ("HELLO", "hello", "BASE")
    patches.undo()

    assert "greet" not in vars(Inherits)
    assert vars(patched) == {}
    assert vars(Base)["name"] is stored
    assert (Inherits().greet(), Base.name()) == ("hello", "base")


def test_what_others_wrapped_around_ours_later_stays() -> None:
    """Only what is still ours is restored, also where the class had no method of its own."""
    own, ours, theirs = type("Own", (Base,), {"greet": Base.greet}), Patches(), Patches()
    inherited = type("Inherited", (own,), {})
    for owner in (inherited, own):
        ours.wrap(owner, "greet", louder)
        theirs.wrap(owner, "greet", more)
    ours.undo()

    assert (own().greet(), inherited().greet()) == ("HELLO?", "HELLO?")


def test_undo_that_fails_costs_no_other() -> None:
    """It is counted; what somebody else took away already is no failure."""
    patched, before = Base(), failures.count
    patches = Patches()
    patches.wrap(Base, "greet", louder)
    patches.wrap(patched, "greet", louder)
    patches.on_undo(lambda: 1 / 0)
    del patched.greet
    patches.undo()

    assert Base().greet() == "hello"
    assert failures.count == before + 1


def test_patches_of_a_part_that_fails_half_way_are_undone() -> None:
    """Nobody would know of them any more."""

    @attaching
    def attach(patches: Patches, name: str) -> None:
        patches.wrap(Base, name, louder)
        raise ValueError(name)

    with pytest.raises(ValueError, match="greet"):
        attach("greet")

    assert Base().greet() == "hello"


def test_copy_of_a_patched_object_has_methods_of_its_own() -> None:
    """A trainer that is pickled or deep-copied while it is timed saves itself, not the first."""
    patches, trained = Patches(), Inherits()
    patches.wrap(trained, "greet", louder)
    for copied in (copy.deepcopy(trained), pickle.loads(pickle.dumps(trained))):
        greet: Any = copied.greet
        assert greet.__self__ is copied
    patches.undo()

    assert vars(trained) == {}


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
    """To all who wait, with the whole module, and to others at once; a reload gives it to nobody.

    Who cancelled hears of no import, and one that fails fails with the usual error.
    """
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

    when_imported(NAME, seen.append)
    assert seen == [module] * 3
    assert module.answer() == 42
    assert "exec_module" not in vars(module.__loader__)


def test_failing_call_does_not_reach_the_import(seen: list[ModuleType]) -> None:
    """The user gets the module, and the failure is counted."""
    before = failures.count
    when_imported(NAME, lambda _: 1 / 0)

    assert importlib.import_module(NAME).answer() == 42
    assert failures.count == before + 1


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


def test_package_is_given_when_its_submodule_is_imported(
    seen: list[ModuleType], tmp_path: Path
) -> None:
    """`import torch.nn` imports torch first."""
    package = tmp_path / f"{NAME}_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sub.py").touch()
    when_imported(package.name, seen.append)
    sub = importlib.import_module(f"{package.name}.sub")

    assert seen == [sys.modules.pop(package.name)]
    assert sys.modules.pop(sub.__name__) is sub


def test_import_that_failed_may_be_tried_again(
    seen: list[ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that raises while it is imported is given once it has not."""
    (tmp_path / f"{NAME}.py").write_text("import sys\nif not sys.testing_again: 1 / 0\n")
    when_imported(NAME, seen.append)
    monkeypatch.setattr(sys, "testing_again", False, raising=False)
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    monkeypatch.setattr(sys, "testing_again", True)

    assert importlib.import_module(NAME) in seen


def test_modules_with_one_loader_are_told_apart(
    seen: list[ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules of one archive share a loader; each is given once it has run, and only it."""
    names = ("zipped_first", "zipped_second", "zipped_third")
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("zipped_first.py", "import zipped_third, zipped_second")
        archive.writestr("zipped_second.py", "")
        archive.writestr("zipped_third.py", "")
    monkeypatch.syspath_prepend(tmp_path / "modules.zip")
    for name in names[:2]:
        when_imported(name, seen.append)
    importlib.import_module("zipped_first")
    modules = [sys.modules.pop(name) for name in names]

    assert seen == [modules[1], modules[0]]


def test_pause_gives_way_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a wake-up: a fast machine needs fewer; Python itself gives way after 5 ms."""
    now, slept = [100.0], list[float]()
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr(yielding, "time", clock)
    monkeypatch.setattr(yielding, "_last", SimpleNamespace(at=0.0))
    give_way()
    now[0] += WORK_SECONDS / 2
    give_way()
    assert slept == [TURN_SECONDS]
    assert 0 < TURN_SECONDS < 2.5e-3
    now[0] += WORK_SECONDS
    give_way()
    assert slept == [TURN_SECONDS] * 2
    now[0] += 1.0
    has_waited()  # For something else: the others had their turn.
    give_way()
    assert slept == [TURN_SECONDS] * 2
