"""What the build compiles, and where it must not."""

import runpy
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hatch_build(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The hook, without the packages that call it."""
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "setuptools"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Distribution=None, Extension=None))
    plugin = SimpleNamespace(BuildHookInterface=object)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin", plugin)
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", plugin)
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def test_python_without_its_lock_gets_no_compiled_module(
    hatch_build: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They rely on it: Python would turn it on again for them."""
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    hook = hatch_build["CustomBuildHook"]()
    hook.target_name, hook.root = "wheel", str(ROOT)
    data: dict[str, Any] = {"force_include": {}, "pure_python": True}
    hook.initialize("standard", data)
    hook.finalize("standard", data, "")

    assert data == {"force_include": {}, "pure_python": True}


def test_module_that_a_process_runs_is_not_written_into(
    hatch_build: dict[str, Any], tmp_path: Path
) -> None:
    """It would crash: what it has mapped stays as it is."""
    built, installed = tmp_path / "_fold.so", tmp_path / "rank_probe" / "_fold.so"
    installed.parent.mkdir()
    installed.write_text("old")
    built.write_text("new")
    with installed.open() as mapped:
        hatch_build["place"](built, installed.parent)

        assert mapped.read() == "old"
    assert installed.read_text() == "new"
