"""Tests of acting on somebody's import: at the right time, once, and unseen by whoever imports."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rank_probe.guest.guard import failures
from rank_probe.guest.imports import when_imported

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


def test_cancelled_call_never_comes() -> None:
    """Who has detached does not hear of a later import."""
    seen: list[ModuleType] = []
    when_imported(NAME, seen.append)()
    importlib.import_module(NAME)

    assert seen == []


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


def test_import_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    """A module that raises while it is imported is given once it has not."""
    (tmp_path / f"{NAME}.py").write_text("import sys\nif not sys.testing_again: 1 / 0\n")
    seen: list[ModuleType] = []
    when_imported(NAME, seen.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "testing_again", False, raising=False)
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(NAME)
        patch.setattr(sys, "testing_again", True, raising=False)
        module = importlib.import_module(NAME)

    assert seen == [module]


def test_module_loaded_beside_the_imported_ones_is_not_given() -> None:
    """A copy that somebody executes for himself is not the module that was waited for."""
    seen: list[ModuleType] = []
    cancel = when_imported(NAME, seen.append)
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    cancel()

    assert copy.answer() == 42
    assert seen == []


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
