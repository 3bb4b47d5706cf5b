"""Who imports whom: the probe nobody, the exporter the probe, the client both, the simulator all.

What is private in torch is named in one room.
"""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# Each may need those before it.
ORDER: Final = ("rank_probe", "exporter", "rankskew", "fleet_simulator")
# A package whose name to import is another, and those that come with one that is asked for.
CALLED: Final = {
    "yaml": "pyyaml",
    "pynvml": "nvidia-ml-py",
    "starlette": "fastapi",
    "pydantic_core": "pydantic",
}
PRIVATE_OF_TORCH: Final = re.compile(r"\btorch\.(\w+\.)*_(?!_)|\b_C\b")


def files(package: str) -> list[Path]:
    """Return the modules of *package*."""
    return list((ROOT / package).rglob("*.py"))


@cache
def taken(package: str) -> set[str]:
    """Return the packages that *package* imports, also inside functions."""
    nodes = [node for path in files(package) for node in ast.walk(ast.parse(path.read_text()))]
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    names += [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    return {name.partition(".")[0] for name in names}


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
    hooks = ROOT / "rank_probe" / "torch_hooks"
    named = [
        str(path)
        for path in (each for package in ORDER[:3] for each in files(package))
        if hooks not in path.parents and PRIVATE_OF_TORCH.search(path.read_text())
    ]

    assert named == []
