"""The rules, runbooks, Alertmanager configuration and dashboards that come with the code."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from exporter.errors import StartError, UsageError, reason

PACKAGE: Final = Path(__file__).parent
# What is shipped, by its place in a wheel (exporter/bundled/...) and in a checkout.
PLACES: Final = {
    "alerts/rules": "alerts/rules",
    "alerts/runbooks": "alerts/runbooks",
    "alerts/alertmanager.yaml": "alerts/alertmanager.yaml",
    "dashboards": "dashboards/json",
}


def bundled(name: str) -> Path:
    """Return where *name*, a key of PLACES, lies: in an installed wheel or in a checkout.

    Raises StartError when it lies in neither, which means that the installation is damaged.
    """
    for path in (PACKAGE / "bundled" / name, PACKAGE.parent / PLACES[name]):
        if path.exists():
            return path
    raise StartError(f"{name} is not in this installation: install rankskew again")


def write_files(directory: Path, overwrite: bool = False) -> list[Path]:
    """Write everything bundled below *directory* and return the files.

    A file that is there already and differs is somebody's work: UsageError, unless *overwrite*;
    nothing is written then.
    """
    copies = {directory / target: source for target, source in _files()}
    changed = [path for path, source in copies.items() if _differs(path, source)]
    if changed and not overwrite:
        raise UsageError(f"{changed[0]} was changed: choose another directory, or add --overwrite")
    try:
        for target, source in copies.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except OSError as error:
        raise StartError(f"cannot write {error.filename}: {reason(error)}") from error
    return list(copies)


def _files() -> Iterator[tuple[Path, Path]]:
    """Yield each bundled file: its place in the bundle, and where it lies now."""
    for name in PLACES:
        root = bundled(name)
        if root.is_file():
            yield Path(name), root
        for source in sorted(path for path in root.glob("**/*") if path.is_file()):
            yield Path(name) / source.relative_to(root), source


def _differs(path: Path, source: Path) -> bool:
    return path.is_file() and path.read_bytes() != source.read_bytes()
