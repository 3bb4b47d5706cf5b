"""Looks up torch's private names for the probe, and records what is lost where one is missing.

Any release of torch may lack any of them. Each hook states the loss where it uses a name.
"""

from collections.abc import Callable
from typing import Any, Final

from rank_probe.guest.patches import Patches

# How the probe behaves without the names that this torch lacks: sentences, each once.
limitations: Final[dict[str, None]] = {}


def find(owner: Any, path: str, without: str = "") -> Any:
    """Return what *owner* has at *path*, such as `Store.wait`; None if there is nothing.

    *without* says what the probe does then; empty if another name serves as well.
    """
    for name in path.split("."):
        if owner is not None:
            owner = getattr(owner, name, None)
    if owner is None and without:
        limitations[without] = None
    return owner


def wrap(
    patches: Patches, owner: Any, path: str, make: Callable[[Any], Any], without: str = ""
) -> None:
    """Have *patches* replace *path* of *owner* by *make*(it); *without* is as in find()."""
    if find(owner, path, without) is not None:
        parent, _, name = path.rpartition(".")
        patches.wrap(find(owner, parent) if parent else owner, name, make)
