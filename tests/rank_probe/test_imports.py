"""Tests of acting on somebody's import: at the right time, once, and unseen by whoever imports."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rank_probe.guard import failures
from rank_probe.imports import when_imported

NAME = "imported_by_a_test"


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
    """The call comes with the whole module, and a second import brings no second call."""
    seen: list[ModuleType] = []
    when_imported(NAME, seen.append)
    module = importlib.import_module(NAME)
    importlib.import_module(NAME)

    assert seen == [module]
    assert module.answer() == 42


def test_two_who_wait_are_both_told() -> None:
    """One module may interest several parts of the probe."""
    seen: list[str] = []
    for who in ("mesh", "stages"):
        when_imported(NAME, lambda module, who=who: seen.append(who))  # type: ignore[misc]
    importlib.import_module(NAME)

    assert sorted(seen) == ["mesh", "stages"]


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


def test_watched_module_looks_like_any_other() -> None:
    """Its loader, its specification and its source are what they would be without us."""
    when_imported(NAME, lambda _: None)
    module = importlib.import_module(NAME)
    spec = importlib.util.find_spec(NAME)

    assert spec is not None
    assert type(module.__loader__) is type(spec.loader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert "42" in inspect.getsource(module)


def test_missing_module_is_missing_as_ever() -> None:
    """An import that fails fails with the usual error."""
    cancel = when_imported("no_such_module_anywhere", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        importlib.import_module("no_such_module_anywhere")
    cancel()
