"""The probe knows nobody, the exporter the probe, the client both, and the simulator all."""

import re
import sys
import tomllib
from graphlib import TopologicalSorter

import pytest

from tests.repo.imports import ROOT, imported, modules

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
