"""What each module of this tree imports."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

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
