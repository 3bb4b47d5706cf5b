"""The picture in CONTRIBUTING.md: packages and their rooms, and which of them need which."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# From what everything needs to what nothing needs.
PACKAGES: Final = (
    *("rank_probe", "exporter", "rankskew", "fleet_simulator", "devstack", "demo"),
    *("benchmarks", "generators", "dashboards", "alerts"),
)
# The list of all collectors knows their rooms, and what reads it knows no collector.
CATALOG: Final = "exporter.collectors.catalog"

Needs = Mapping[str, set[str]]


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


def needs_of_modules(*packages: str) -> dict[str, set[str]]:
    """Return which others of *packages* each of their modules imports."""
    files = modules(*packages)
    return {
        module: {other for other in imported(path, files) if other in files}
        for module, path in files.items()
    }


def room(module: str) -> str:
    """Return the room of *module*: its folder; a module of none is a room of its own."""
    folder = module.rpartition(".")[0]
    return module if folder in ("", *PACKAGES) or module == CATALOG else folder


def merged(needs: Needs, whole: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which wholes need which others, given what their parts need."""
    found: dict[str, set[str]] = {whole[part]: set() for part in needs}
    for part, others in needs.items():
        found[whole[part]] |= {whole[other] for other in others} - {whole[part]}
    return found


def needs_of_rooms(*packages: str) -> dict[str, set[str]]:
    """Return which other rooms of *packages* each of their rooms needs."""
    needs = needs_of_modules(*packages)
    return merged(needs, {module: room(module) for module in needs})


def all_needs(needs: Needs) -> dict[str, set[str]]:
    """Return what each needs in the end; CycleError if any of them need each other."""
    found: dict[str, set[str]] = {}
    for one in TopologicalSorter(needs).static_order():
        found[one] = set().union(needs[one], *(found[other] for other in needs[one]))
    return found


def arrows(needs: Needs, shown: Iterable[str]) -> Iterator[str]:
    """Yield arrows from each of *shown* to what it needs, unless something between needs it."""
    below = all_needs(needs)
    drawn = {one: below[one] & set(shown) for one in shown}
    for one, others in drawn.items():
        direct = others - set().union(*(drawn[other] for other in others))
        if direct:
            yield f"  {_id(one)} --> {' & '.join(map(_id, sorted(direct)))}"


def picture() -> str:
    """Return packages, the folders in them, and what needs what, in Mermaid."""
    boxes: list[str] = []
    between_rooms: list[str] = []
    for name in PACKAGES:
        needs = needs_of_rooms(name)
        folders = sorted(each for each in needs if (ROOT / each.replace(".", "/")).is_dir())
        boxes.append(f'  subgraph {name}["{name}/"]')
        boxes += [f'    {_id(each)}["{_label(each)}"]' for each in folders]
        boxes += [] if folders else [f'    {name}_files["{_files(name)}"]']
        boxes.append("  end")
        between_rooms += arrows(needs, folders)
    modules = needs_of_modules(*PACKAGES)
    packages = merged(modules, {module: module.partition(".")[0] for module in modules})
    lines = [*boxes, *between_rooms, *arrows(packages, PACKAGES)]
    return "\n".join(["```mermaid", "flowchart TB", *lines, "```"])


def _id(name: str) -> str:
    return name.replace(".", "_")


def _label(folder: str) -> str:
    return folder.partition(".")[2].replace(".", "/")


def _files(package: str) -> str:
    return "<br>".join(sorted(path.stem for path in modules(package).values()))
