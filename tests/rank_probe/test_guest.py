"""Tests of the guest: failures stay ours, patches come off, imports and threads notice nothing."""

import copy
import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import pickle
import sys
import threading
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


class Inherits(Base):
    pass


def louder(original: Callable[..., str]) -> Any:
    def greet(*args: Any) -> str:
        return original(*args).upper()

    return greet


def test_inherited_method_is_taken_away_again() -> None:
    """The class has no attribute of its own afterwards, so a later patch of its base is seen."""
    patches = Patches()
    patches.wrap(Inherits, "greet", louder)
    assert Inherits().greet() == "HELLO"
    patches.undo()

    assert "greet" not in vars(Inherits)
    assert Inherits().greet() == "hello"


def test_method_of_one_object_is_its_classes_again() -> None:
    """Patching an instance leaves no attribute on it."""
    patched, other = Base(), Base()
    patches = Patches()
    patches.wrap(patched, "greet", louder)
    assert (patched.greet(), other.greet()) == ("HELLO", "hello")
    patches.undo()

    assert vars(patched) == {}


def test_what_the_class_stores_is_put_back() -> None:
    """Not what asking for it gives: a static method would come back as one that takes self."""

    class Holder:
        @staticmethod
        def greet(name: str) -> str:
            return f"hello {name}"

    stored = vars(Holder)["greet"]
    patches = Patches()
    patches.wrap(Holder, "greet", lambda original: lambda _self, name: original(name).upper())
    patches.undo()

    assert vars(Holder)["greet"] is stored
    assert Holder().greet("you") == "hello you"


def test_what_others_wrapped_around_ours_later_stays() -> None:
    """Only what is still ours is restored, also where the class had no method of its own."""

    class Own:
        def greet(self) -> str:
            return "hello"

    class Inherited(Own):
        pass

    ours, theirs = Patches(), Patches()
    for owner in (Inherited, Own):
        ours.wrap(owner, "greet", louder)
        theirs.wrap(owner, "greet", lambda original: lambda self: original(self) + "?")
    ours.undo()

    assert (Own().greet(), Inherited().greet()) == ("HELLO?", "HELLO?")


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


class Trained(Base):
    """Module level, so that pickle finds it."""


def test_copy_of_a_patched_object_has_methods_of_its_own() -> None:
    """A trainer that is pickled or deep-copied while it is timed saves itself, not the first."""
    patches, trained = Patches(), Trained()
    patches.wrap(trained, "greet", louder)
    for copied in (copy.deepcopy(trained), pickle.loads(pickle.dumps(trained))):
        greet: Any = copied.greet
        assert greet.__self__ is copied
    patches.undo()

    assert vars(trained) == {}


NAME = "imported_later"


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that nobody has imported yet."""
    (tmp_path / f"{NAME}.py").write_text("def answer(): return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield
    sys.modules.pop(NAME, None)
    assert sys.meta_path == before


def test_module_is_given_once_it_has_run() -> None:
    """To all who wait, with the whole module; a second import or a reload brings no second call."""
    seen: list[ModuleType] = []
    for _ in range(2):
        when_imported(NAME, lambda module: seen.append(module))
    module = importlib.import_module(NAME)
    importlib.import_module(NAME)
    importlib.reload(module)

    assert seen == [module, module]
    assert module.answer() == 42
    assert "exec_module" not in vars(module.__loader__)


def test_imported_module_is_given_at_once() -> None:
    """Nothing is waited for where the user was first."""
    seen: list[ModuleType] = []
    module = importlib.import_module(NAME)
    when_imported(NAME, seen.append)

    assert seen == [module]


def test_failing_call_does_not_reach_the_import() -> None:
    """The user gets the module, and the failure is counted."""
    before = failures.count

    def fail(_: ModuleType) -> None:
        raise RuntimeError("ours")

    when_imported(NAME, fail)

    assert importlib.import_module(NAME).answer() == 42
    assert failures.count == before + 1


def test_missing_module_is_missing_as_ever() -> None:
    """An import that fails fails with the usual error."""
    cancel = when_imported("no_such_module_anywhere", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        importlib.import_module("no_such_module_anywhere")
    cancel()


def test_looking_for_a_module_is_not_importing_it() -> None:
    """Who asks whether it is installed sees its own loader, as in the module when it is there."""
    seen: list[ModuleType] = []
    when_imported(NAME, seen.append)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert isinstance(spec.loader, importlib.machinery.SourceFileLoader)
    assert "42" in (spec.loader.get_source(NAME) or "")
    assert seen == []

    module = importlib.import_module(NAME)
    assert seen == [module]
    assert type(module.__loader__) is type(spec.loader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "42" in inspect.getsource(module)


def test_package_is_given_when_its_submodule_is_imported(tmp_path: Path) -> None:
    """`import torch.nn` imports torch first."""
    package = tmp_path / f"{NAME}_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sub.py").write_text("")
    seen: list[ModuleType] = []
    when_imported(package.name, seen.append)
    sub = importlib.import_module(f"{package.name}.sub")

    assert seen == [sys.modules.pop(package.name)]
    assert sys.modules.pop(sub.__name__) is sub


def test_modules_with_one_loader_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules of one archive share a loader; each is given once it has run, and only it."""
    names = ("zipped_first", "zipped_second", "zipped_third")
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("zipped_first.py", "import zipped_third, zipped_second")
        archive.writestr("zipped_second.py", "")
        archive.writestr("zipped_third.py", "")
    monkeypatch.syspath_prepend(tmp_path / "modules.zip")
    seen: list[ModuleType] = []
    for name in names[:2]:
        when_imported(name, seen.append)
    importlib.import_module("zipped_first")
    modules = [sys.modules.pop(name) for name in names]

    assert seen == [modules[1], modules[0]]


def test_pause_is_short_and_gives_way() -> None:
    """It takes far less than the 5 ms after which Python makes a thread give way."""
    assert 0 < TURN_SECONDS < 2.5e-3
    turns: list[str] = []
    ready = threading.Event()

    def other() -> None:
        ready.wait()
        turns.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    ready.set()
    while not turns:  # The timeout of the test ends it.
        give_way()
    thread.join()

    assert turns == ["other"]


def test_pause_is_taken_after_some_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a wake-up: a fast machine needs fewer."""
    now, slept = [100.0], list[float]()
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=slept.append)
    monkeypatch.setattr(yielding, "time", clock)
    monkeypatch.setattr(yielding, "_last", SimpleNamespace(at=0.0))
    give_way()
    now[0] += WORK_SECONDS / 2
    give_way()
    assert slept == [TURN_SECONDS]
    now[0] += WORK_SECONDS
    give_way()
    assert slept == [TURN_SECONDS] * 2
    now[0] += 1.0
    has_waited()  # For something else: the others had their turn.
    give_way()
    assert slept == [TURN_SECONDS] * 2
