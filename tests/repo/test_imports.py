"""Who imports whom: the probe nobody, the exporter the probe, the client both, the simulator all.

What is private in torch is named in one room.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


def modules(*packages: str) -> dict[str, Path]:
    """Return the file of each module of *packages*, without their `__init__`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.stem != "__init__"
    }


def imported(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield what a file imports, also inside functions: modules that are *known* by their name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


# Each may need those before it.
ORDER = ("rank_probe", "exporter", "rankskew", "fleet_simulator")
# A package whose name to import is another, and those that come with one that is asked for.
CALLED = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "starlette": "fastapi"}
CALLED |= {"pydantic_core": "pydantic"}


def taken(package: str) -> set[str]:
    """Return the modules that *package* imports, also inside functions."""
    known = modules(*ORDER)
    return {name for path in (ROOT / package).rglob("*.py") for name in imported(path, known)}


def others(package: str) -> set[str]:
    """Return the packages from elsewhere that *package* imports, as pyproject.toml calls them."""
    names = {module.partition(".")[0] for module in taken(package)}
    names -= {*ORDER, *sys.stdlib_module_names}
    return {CALLED.get(name, name.replace("_", "-")) for name in names}


def extra(name: str) -> set[str]:
    """Return the packages of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][name]
    return {re.split(r"[<>=]", each)[0] for each in wanted}


@pytest.mark.parametrize("package", ORDER)
def test_package_needs_only_those_before_it(package: str) -> None:
    """So an exporter can be read without the client, and the probe without either."""
    needed = {module.partition(".")[0] for module in taken(package)} & set(ORDER)

    assert needed <= set(ORDER[: ORDER.index(package) + 1])


def test_no_two_modules_need_each_other() -> None:
    """Not even when they run; CycleError, if they do, names the modules."""
    files = modules(*ORDER, "demo", "benchmarks", "generators", "dashboards", "alerts")
    needs = {name: {*imported(path, files)} & {*files} for name, path in files.items()}

    assert list(TopologicalSorter(needs).static_order())


@pytest.mark.parametrize(
    ("package", "names"), [("exporter", ["exporter"]), ("rankskew", ["cli", "mcp"])]
)
def test_extra_has_what_its_package_imports_and_no_more(package: str, names: list[str]) -> None:
    """A node installs nothing to draw in a terminal; only an assistant's room needs `mcp`."""
    wanted = {each for name in names for each in extra(name)} - {"rankskew[cli]"}

    assert others(package) == wanted


def test_laptop_without_an_assistant_installs_no_web_server() -> None:
    assert extra("mcp") == {"rankskew[cli]", "mcp"}


def test_simulator_needs_no_extra_of_its_own() -> None:
    """It serves what an exporter serves."""
    assert others("fleet_simulator") <= extra("exporter")


HOOKS = "rank_probe.torch_hooks."
PRIVATE_OF_TORCH = re.compile(r"\btorch\.(\w+\.)*_(?!_)|\b_C\b")


def test_only_the_hooks_name_what_is_private_in_torch() -> None:
    """So a new torch is tried and mended in one room."""
    naming = {
        module
        for module, path in modules("rank_probe", "exporter", "rankskew").items()
        if not module.startswith(HOOKS) and PRIVATE_OF_TORCH.search(path.read_text())
    }

    assert naming == set()
