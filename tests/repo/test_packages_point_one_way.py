"""The probe knows nobody, the exporter the probe, the client both, and the simulator all."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each may need those before it.
ORDER = ("rank_probe", "exporter", "rankskew", "fleet_simulator")
# Of the exporter: what the client may know of it. The rest is the exporter's own.
FACE = {
    "exporter.bundle",
    "exporter.causes.explain",
    "exporter.causes.model",
    "exporter.causes.units",
    "exporter.commands.arguments",
    "exporter.durations",
    "exporter.errors",
    "exporter.live.causes",
    "exporter.live.sentences",
    "exporter.live.states",
    "exporter.ranks.late_enough",
    "exporter.vocabulary.thresholds",
    "exporter.vocabulary.words",
}
# A package whose name to import is another, and those that come with one that is asked for.
CALLED = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py", "starlette": "fastapi"}
CALLED |= {"pydantic_core": "pydantic", "markdown_it": "markdown-it-py"}


def imported(package: str) -> Iterator[str]:
    """Yield the modules that *package* imports, also inside functions."""
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                is_package = (ROOT / node.module.replace(".", "/")).is_dir()
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from names if is_package else [node.module]


def others(package: str) -> set[str]:
    """Return the packages from elsewhere that *package* imports, as pyproject.toml calls them."""
    names = {module.partition(".")[0] for module in imported(package)}
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
    needed = {module.partition(".")[0] for module in imported(package)} & set(ORDER)

    assert needed <= set(ORDER[: ORDER.index(package) + 1])


def test_client_knows_only_the_face_of_the_exporter() -> None:
    """What else is in the exporter may change without a look at the commands; no name is stale."""
    known = {module for module in imported("rankskew") if module.startswith("exporter.")}

    assert known == FACE


def test_rooms_of_the_client_point_one_way() -> None:
    """CycleError, if two need each other, names them."""
    taken: dict[str, set[str]] = {}
    for folder in (path for path in (ROOT / "rankskew").iterdir() if path.is_dir()):
        rooms = {
            ".".join(module.split(".")[:2])
            for module in imported(f"rankskew/{folder.name}")
            if module.startswith("rankskew.")
        }
        taken[f"rankskew.{folder.name}"] = rooms - {f"rankskew.{folder.name}"}
    order = list(TopologicalSorter(taken).static_order())

    assert order.index("rankskew.client") < order.index("rankskew.top")
    assert order.index("rankskew.replay") < order.index("rankskew.diagnose")


@pytest.mark.parametrize(("package", "name"), [("exporter", "exporter"), ("rankskew", "cli")])
def test_extra_has_what_its_package_imports_and_no_more(package: str, name: str) -> None:
    """A node installs nothing to draw in a terminal, and a laptop no web server."""
    assert others(package) == extra(name)


def test_simulator_needs_no_extra_of_its_own() -> None:
    """It serves what an exporter serves; its stack, which is in no wheel, is started by tests."""
    assert others("fleet_simulator") <= extra("exporter")
