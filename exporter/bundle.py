"""The rules, runbooks, dashboards and files of deployments that come with the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from exporter.errors import StartError, UsageError, reason

PACKAGE: Final = Path(__file__).parent
# What is shipped, by its place in a wheel (exporter/bundled/...) and in a checkout.
PLACES: Final = {
    "alerts/rules": "alerts/rules",
    "alerts/runbooks": "alerts/runbooks",
    "alerts/playbook": "docs/playbook",
    "alerts/advice.yaml": "alerts/advice.yaml",
    "alerts/alertmanager.yaml": "alerts/alertmanager.yaml",
    "alerts/notifications.tmpl": "alerts/notifications.tmpl",
    "dashboards": "dashboards/json",
    "deploy/prometheus": "deploy/prometheus",
    "deploy/systemd": "deploy/systemd",
}
KEEP_FIRING_FOR: Final = re.compile(rb"^ *keep_firing_for:.*\n", re.MULTILINE)


def bundled(name: str) -> Path:
    """Return where *name*, a key of PLACES, lies: in an installed wheel or in a checkout.

    Raises StartError when it lies in neither, which means that the installation is damaged.
    """
    for path in (PACKAGE / "bundled" / name, PACKAGE.parent / PLACES[name]):
        if path.exists():
            return path
    raise StartError(f"{name} is not in this installation: install rankskew again")


def write_files(directory: Path, overwrite: bool = False, vmalert: bool = False) -> list[Path]:
    """Write everything bundled below *directory* and return the files.

    For *vmalert* the rules come without `keep_firing_for`, which it refuses before 1.92.
    A file that is there already and differs is somebody's work: UsageError, unless *overwrite*;
    nothing is written then.
    """
    contents = {directory / target: _content(source, vmalert) for target, source in _files()}
    changed = [path for path, content in contents.items() if _differs(path, content)]
    if changed and not overwrite:
        raise UsageError(f"{changed[0]} was changed: choose another directory, or add --overwrite")
    try:
        for target, content in contents.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if content.startswith(b"#!"):
                target.chmod(0o755)  # A scheduler runs it.
    except OSError as error:
        raise StartError(f"cannot write {error.filename}: {reason(error)}") from error
    return list(contents)


def _files() -> Iterator[tuple[Path, Path]]:
    """Yield each bundled file: its place in the bundle, and where it lies now."""
    for name in PLACES:
        root = bundled(name)
        if root.is_file():
            yield Path(name), root
        for source in sorted(path for path in root.glob("**/*") if path.is_file()):
            yield Path(name) / source.relative_to(root), source


def _content(source: Path, vmalert: bool) -> bytes:
    content = source.read_bytes()
    is_rule_file = source.parent == bundled("alerts/rules")
    return KEEP_FIRING_FOR.sub(b"", content) if vmalert and is_rule_file else content


def _differs(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() != content
