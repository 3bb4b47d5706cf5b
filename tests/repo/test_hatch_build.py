"""Tests of what is built: compiled modules, except where they could not work."""

import importlib
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hatch_build(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook, without the package that calls it."""
    interface: Any = ModuleType("interface")
    interface.BuildHookInterface = object
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    for name in ("setuptools", "hatchling", "hatchling.builders"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Distribution=None, Extension=None))
    for name in ("hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delitem(sys.modules, "hatch_build", raising=False)
    module = importlib.import_module("hatch_build")
    monkeypatch.delitem(sys.modules, "hatch_build")
    return module


@pytest.mark.parametrize(
    ("free_threaded", "variable", "is_pure"),
    [(0, None, False), (None, "1", False), (None, "0", True), (1, None, True)],
)
def test_wheel_is_pure_where_it_must_be(
    hatch_build: Any,
    monkeypatch: pytest.MonkeyPatch,
    free_threaded: int | None,
    variable: str | None,
    is_pure: bool,
) -> None:
    """The modules rely on the interpreter's lock; a Python without it gets none of them."""
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": free_threaded}.get)
    monkeypatch.delenv("RANKSKEW_COMPILE", raising=False)
    if variable is not None:
        monkeypatch.setenv("RANKSKEW_COMPILE", variable)
    built = [Path(f"{name}.so") for name in hatch_build.MODULES]
    monkeypatch.setattr(hatch_build, "compile_modules", lambda *_: built)
    hook = hatch_build.CustomBuildHook()
    hook.target_name, hook.root = "wheel", str(ROOT)
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.initialize("standard", data)
    hook.finalize("standard", data, "")

    assert data["pure_python"] is is_pure
    assert len(data["force_include"]) == (0 if is_pure else len(built))


def test_module_that_a_process_runs_is_not_written_into(hatch_build: Any, tmp_path: Path) -> None:
    """It would crash: what it has mapped stays as it is."""
    built, installed = tmp_path / "_fold.so", tmp_path / "rank_probe" / "_fold.so"
    installed.parent.mkdir()
    installed.write_text("old")
    built.write_text("new")
    with installed.open() as mapped:
        hatch_build.place(built, installed.parent)

        assert mapped.read() == "old"
    assert installed.read_text() == "new"
