"""Finds what the probe uses of torch that torch does not promise, and keeps what is lost without.

Each hook says so where it uses a name: a release of torch may lack any of them.
"""

from collections.abc import Callable
from typing import Any, Final

from rank_probe.guest.patches import Patches

# What the probe does without the names that this torch was found to lack: sentences, each once.
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
