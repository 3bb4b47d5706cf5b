"""The rooms of the exporter build on one another in one direction."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Rooms with doors between them: each subfolder is a room of its own, and so is each of these files.
CATALOG = "exporter.collectors.catalog"


def room(module: str) -> str:
    """Return the room that *module* is in: its folder; what has none is a room of its own."""
    folder = module.rpartition(".")[0]
    return module if folder in ("", "exporter") or module == CATALOG else folder


def modules() -> dict[str, Path]:
    files = (ROOT / "exporter").rglob("*.py")
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


def rooms() -> dict[str, set[str]]:
    """Return what each room takes from others."""
    files = modules()
    taken: dict[str, set[str]] = {room(module): set() for module in files}
    for module, path in files.items():
        needs = {room(other) for other in imported(path, set(files)) if other in files}
        taken[room(module)] |= needs - {room(module)}
    return taken


def test_no_two_rooms_need_each_other() -> None:
    """CycleError, if they do, names the rooms."""
    order = list(TopologicalSorter(rooms()).static_order())

    assert order.index("exporter.nvml") < order.index("exporter.nvml.readings")
    assert order.index("exporter.ranks") < order.index("exporter.live")
    assert order.index(CATALOG) < order.index("exporter.wiring")


def test_what_serves_needs_nothing_of_replay() -> None:
    """Only the commands know both, and those that read a trace among other sources."""
    taken = rooms()

    assert {user for user, needs in taken.items() if "exporter.replay" in needs} == {
        "exporter.commands",
        "exporter.diagnose",
        "exporter.diagnose.compare",
    }
    assert not any(
        "exporter.diagnose" in needs
        for room, needs in taken.items()
        if room not in ("exporter.commands", "exporter.diagnose.prometheus")
    )
    assert "exporter.server" not in taken["exporter.replay"] | taken["exporter.accounting"]
