"""Who imports whom: the probe nobody, the exporter the probe, the client both, the simulator all.

What is private in torch is named in one room.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# Each may need those before it.
ORDER: Final = ("rank_probe", "exporter", "rankskew", "fleet_simulator")
OTHERS: Final = ("demo", "benchmarks", "generators", "dashboards", "alerts")
# A package whose name to import is another, and those that come with one that is asked for.
CALLED: Final = {
    "yaml": "pyyaml",
    "pynvml": "nvidia-ml-py",
    "starlette": "fastapi",
    "pydantic_core": "pydantic",
}
PRIVATE_OF_TORCH: Final = re.compile(r"\btorch\.(\w+\.)*_(?!_)|\b_C\b")


def of(path: Path) -> str:
    """Return the name to import a module by."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """Yield what a file imports, also inside functions: modules that are *known* by their name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def imports() -> dict[str, set[str]]:
    """Return what each of our modules imports."""
    files = [path for package in (*ORDER, *OTHERS) for path in (ROOT / package).rglob("*.py")]
    known = {of(path) for path in files}
    return {of(path): set(imported(path, known)) for path in files}


def top(module: str) -> str:
    """Return the package of *module*."""
    return module.partition(".")[0]


def taken(package: str) -> set[str]:
    """Return the packages that *package* imports."""
    return {
        top(each) for name, those in imports().items() if top(name) == package for each in those
    }


def others(package: str) -> set[str]:
    """Return the packages from elsewhere that *package* imports, as pyproject.toml calls them."""
    names = taken(package) - {*ORDER, *sys.stdlib_module_names}
    return {CALLED.get(name, name.replace("_", "-")) for name in names}


def extra(name: str) -> set[str]:
    """Return the packages of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][name]
    return {re.split(r"[<>=]", each)[0] for each in wanted}


@pytest.mark.parametrize("package", ORDER)
def test_package_needs_only_those_before_it(package: str) -> None:
    """So an exporter can be read without the client, and the probe without either."""
    assert taken(package) & {*ORDER} <= set(ORDER[: ORDER.index(package) + 1])


def test_no_two_modules_need_each_other() -> None:
    """Not even when they run; CycleError, if they do, names the modules."""
    needs = {name: {*those} & imports().keys() for name, those in imports().items()}

    assert list(TopologicalSorter(needs).static_order())


def test_extras_have_what_their_packages_import_and_no_more() -> None:
    """A node installs nothing to draw in a terminal; only an assistant's room needs `mcp`.

    A laptop without an assistant installs no web server, and the simulator needs what an exporter
    does.
    """
    assert others("exporter") == extra("exporter")
    assert others("rankskew") == extra("cli") | extra("mcp") - {"rankskew[cli]"}
    assert extra("mcp") == {"rankskew[cli]", "mcp"}
    assert others("fleet_simulator") <= extra("exporter")


def test_only_the_hooks_name_what_is_private_in_torch() -> None:
    """So a new torch is tried and its changes are followed in one room."""
    files = [path for package in ORDER[:3] for path in (ROOT / package).rglob("*.py")]
    naming = {of(path) for path in files if PRIVATE_OF_TORCH.search(path.read_text())}

    assert {name for name in naming if not name.startswith("rank_probe.torch_hooks")} == set()
