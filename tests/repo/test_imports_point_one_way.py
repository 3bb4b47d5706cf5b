"""The rooms of the probe, and those of the exporter, build on one another in one direction."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Rooms with doors between them: each subfolder is a room of its own, and so is each of these files.
CATALOG = "exporter.collectors.catalog"

PRODUCT = ("rank_probe", "exporter", "rankskew", "fleet_simulator", "dashboards", "alerts")
# Of the probe: a room may need those above it, and none below.
PROBE = (
    "version",
    "guest",
    "wire",
    "measure",
    "torch_hooks",
    "process",
    "judge",
    "join",
    "report",
    "lines",
    "command_line",
    "check",
    "audit.readings",
    "audit.checks",
    "audit",
    "collectives.measurements",
    "collectives",
    "probe",
    "api",
    "integrations",
    "__main__",
)
MOST_MODULES = 14  # More names in one folder are no longer read at a glance.
PRIVATE_OF_TORCH = re.compile(r"\btorch\.(\w+\.)*_(?!_)|\b_C\b")


def room(module: str) -> str:
    """Return the room that *module* is in: its folder; what has none is a room of its own."""
    folder = module.rpartition(".")[0]
    return module if folder in ("", *PRODUCT) or module == CATALOG else folder


def modules(*packages: str) -> dict[str, Path]:
    files = (path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in files
        if path.stem != "__init__"
    }


def imported(path: Path, known: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def taken_by_modules(*packages: str) -> dict[str, set[str]]:
    """Return what each module takes from others of these *packages*, also inside functions."""
    files = modules(*packages)
    return {
        module: {other for other in imported(path, set(files)) if other in files}
        for module, path in files.items()
    }


def rooms(package: str = "exporter") -> dict[str, set[str]]:
    """Return what each room takes from others."""
    taken: dict[str, set[str]] = {}
    for module, others in taken_by_modules(package).items():
        needs = {room(other) for other in others} - {room(module)}
        taken.setdefault(room(module), set()).update(needs)
    return taken


def test_no_two_modules_need_each_other() -> None:
    """Not even when they run; CycleError, if they do, names the modules."""
    list(TopologicalSorter(taken_by_modules(*PRODUCT)).static_order())


def test_rooms_of_the_probe_are_in_order() -> None:
    """So whoever changes one reads only those that it builds on."""
    order = [f"rank_probe.{name}" for name in PROBE]
    taken = rooms("rank_probe")

    assert set(taken) == set(order)
    for place, name in enumerate(order):
        assert taken[name] <= set(order[:place]), name


def test_rooms_of_the_probe_are_small() -> None:
    """At most MOST_MODULES lie in one folder."""
    files = Counter(path.parent for path in modules("rank_probe").values())

    assert {str(folder): count for folder, count in files.items() if count > MOST_MODULES} == {}


def test_only_the_hooks_name_what_is_private_in_torch() -> None:
    """So a new torch is tried and mended in one room."""
    naming = {
        module
        for module, path in modules("rank_probe").items()
        if room(module) != "rank_probe.torch_hooks" and PRIVATE_OF_TORCH.search(path.read_text())
    }

    assert naming == set()


def test_no_two_rooms_need_each_other() -> None:
    """CycleError, if they do, names the rooms."""
    order = list(TopologicalSorter(rooms()).static_order())

    assert order.index("exporter.nvml") < order.index("exporter.nvml.readings")
    assert order.index("exporter.ranks") < order.index("exporter.live")
    assert order.index(CATALOG) < order.index("exporter.wiring")
