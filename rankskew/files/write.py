"""Writes what belongs to this release for whoever runs the exporter and a Prometheus."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from exporter.bundle import PLACES, bundled
from exporter.errors import StartError, UsageError, reason
from rankskew.files.explore import with_links

RULES: Final = Path("alerts/rules")
RANK_DASHBOARD: Final = Path("dashboards/rank.json")
# Of earlier releases; Prometheus would load them beside the others.
OLD_RULES: Final = ("cause.yaml", "copies.yaml", "fallback.yaml", "straggler.yaml")
KEEP_FIRING_FOR: Final = re.compile(r"^ *keep_firing_for:.*\n", re.MULTILINE)
GROUP: Final = re.compile(r"(?m)^(  - name: .*\n)")
Ruler = Literal["thanos", "mimir"]
RULERS: Final[tuple[Ruler, ...]] = ("thanos", "mimir")


@dataclass(frozen=True)
class RuleFormat:
    """What evaluates the rules: Prometheus, unless *ruler* says something else.

    *vmalert* before 1.92 refuses `keep_firing_for`.
    """

    vmalert: bool = False
    ruler: Ruler | None = None


def write_files(
    directory: Path,
    overwrite: bool = False,
    wanted: RuleFormat = RuleFormat(),
    links: Mapping[str, tuple[str, str]] | None = None,
) -> list[Path]:
    """Write everything bundled below *directory*, with the *wanted* rules; return the files.

    The dashboard of a rank gets *links*; see explore.py.

    A file that is there already and differs is somebody's work: UsageError, unless *overwrite*;
    nothing is written then. So is a rule file of an earlier release: it would be loaded too.
    """
    contents = {directory / target: content for target, content in _contents(wanted, links)}
    changed = [path for path, content in contents.items() if _differs(path, content)]
    if changed and not overwrite:
        raise UsageError(f"{changed[0]} was changed: choose another directory, or add --overwrite")
    left = [path for name in OLD_RULES if (path := directory / RULES / name).is_file()]
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


def _contents(
    wanted: RuleFormat, links: Mapping[str, tuple[str, str]] | None
) -> Iterator[tuple[Path, bytes]]:
    """Yield each file's place in the bundle, and what it holds."""
    for target, source in _files():
        if target.parent == RULES:
            text = source.read_text()
            kept = KEEP_FIRING_FOR.sub("", text) if wanted.vmalert else text
            yield (
                target,
                (for_ruler(wanted.ruler, target.stem, kept) if wanted.ruler else kept).encode(),
            )
        elif links and target == RANK_DASHBOARD:
            yield target, with_links(source.read_text(), links).encode()
        else:
            yield target, source.read_bytes()


def for_ruler(ruler: Ruler, name: str, text: str) -> str:
    """Return the rule file *text* in the form of a Thanos Ruler or of `mimirtool rules load`."""
    if ruler == "mimir":
        return f"namespace: rankskew_{name}\n{text}"
    # Better no evaluation than one that lacks nodes, whose ranks would be called missing.
    return GROUP.sub(r"\1    partial_response_strategy: abort\n", text)


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
