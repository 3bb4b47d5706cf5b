"""The rules, runbooks, dashboards and files of deployments that come with the code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exporter.errors import StartError, UsageError, reason
from exporter.shards import COPIES_FILE, Part, Plan, Ruler, for_ruler

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
    "deploy/slurm": "deploy/slurm",
    "deploy/systemd": "deploy/systemd",
}
RULES: Final = Path("alerts/rules")
KEEP_FIRING_FOR: Final = re.compile(r"^ *keep_firing_for:.*\n", re.MULTILINE)


def bundled(name: str) -> Path:
    """Return where *name*, a key of PLACES, lies: in an installed wheel or in a checkout.

    Raises StartError when it lies in neither, which means that the installation is damaged.
    """
    for path in (PACKAGE / "bundled" / name, PACKAGE.parent / PLACES[name]):
        if path.exists():
            return path
    raise StartError(f"{name} is not in this installation: install rankskew again")


@dataclass(frozen=True)
class Wanted:
    """What the rules are for: one Prometheus unless something else is said.

    *vmalert* before 1.92 refuses `keep_firing_for`; *part* is of several Prometheus, see shards.py.
    """

    vmalert: bool = False
    part: Part | None = None
    ruler: Ruler | None = None


def write_files(directory: Path, overwrite: bool = False, wanted: Wanted = Wanted()) -> list[Path]:
    """Write everything bundled below *directory*, with the *wanted* rules; return the files.

    A file that is there already and differs is somebody's work: UsageError, unless *overwrite*;
    nothing is written then. So is a rule file that is not wanted, because it would be loaded too.
    """
    contents = {directory / target: content for target, content in _contents(wanted)}
    changed = [path for path, content in contents.items() if _differs(path, content)]
    if changed and not overwrite:
        raise UsageError(f"{changed[0]} was changed: choose another directory, or add --overwrite")
    left = sorted(path for path in _rule_files(directory) if path not in contents)
    if left:
        raise UsageError(f"{left[0]} does not belong to these rules: remove it")
    try:
        for target, content in contents.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if content.startswith(b"#!"):
                target.chmod(0o755)  # A scheduler runs it.
    except OSError as error:
        raise StartError(f"cannot write {error.filename}: {reason(error)}") from error
    return list(contents)


def _rule_files(directory: Path) -> Iterator[Path]:
    """Yield those rule files of ours, of any part, that are below *directory*."""
    for name in (COPIES_FILE, *(path.name for path in bundled("alerts/rules").iterdir())):
        if (directory / RULES / name).is_file():
            yield directory / RULES / name


def _contents(wanted: Wanted) -> Iterator[tuple[Path, bytes]]:
    """Yield each file's place in the bundle, and what it holds."""
    texts: dict[str, str] = {}
    for target, source in _files():
        if target.parent == RULES:
            texts[target.name] = source.read_text()
        else:
            yield target, source.read_bytes()
    if wanted.part:
        texts = Plan(texts).files(wanted.part)
    for name, text in texts.items():
        kept = KEEP_FIRING_FOR.sub("", text) if wanted.vmalert else text
        yield RULES / name, (for_ruler(wanted.ruler, name, kept) if wanted.ruler else kept).encode()


def _files() -> Iterator[tuple[Path, Path]]:
    """Yield each bundled file: its place in the bundle, and where it lies now."""
    for name in PLACES:
        root = bundled(name)
        if root.is_file():
            yield Path(name), root
        for source in sorted(path for path in root.glob("**/*") if path.is_file()):
            yield Path(name) / source.relative_to(root), source


def _differs(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() != content
