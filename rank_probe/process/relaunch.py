"""Lightning's own launcher runs the script again for other ranks: under the probe as well."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from rank_probe.guest.imports import when_imported
from rank_probe.guest.patches import Patches

# Where each of Lightning's packages builds the command. The names have an underscore: a version
# that lacks them runs its other ranks without the probe, as if we were not here.
MODULES: Final = tuple(
    f"{package}.strategies.launchers.subprocess_script"
    for package in (
        "lightning.fabric",
        "lightning_fabric",
        "lightning.pytorch",
        "pytorch_lightning",
    )
)
BASIC: Final = "_basic_subprocess_cmd"
HYDRA: Final = "_hydra_subprocess_cmd"


def attach() -> Patches:
    """Put `-m rank_probe` into these commands; `undo` the result to detach.

    For a script that runs under `-m rank_probe`: one that calls `start` does so again by itself.
    """
    patches = Patches()
    for name in MODULES:
        patches.on_undo(when_imported(name, functools.partial(_patch, patches)))
    return patches


def _patch(patches: Patches, module: Any) -> None:
    for name, make in ((BASIC, _basic), (HYDRA, _hydra)):
        original = vars(module).get(name)
        # One module imports it from another, where it has been replaced by one of ours.
        if original is not None and original.__globals__ is not globals():
            patches.wrap(module, name, make)


def _under_probe(command: Sequence[str]) -> Sequence[str]:
    """Return *command*, which runs Python on a script or `-m` module, with the probe between."""
    if command[:1] != [sys.executable]:
        return command
    return [sys.executable, "-m", "rank_probe", *command[1:]]


def _basic(original: Callable[..., Sequence[str]]) -> Callable[..., Sequence[str]]:
    def basic_subprocess_cmd(*args: Any, **kwargs: Any) -> Sequence[str]:
        return _under_probe(original(*args, **kwargs))

    return basic_subprocess_cmd


def _hydra(original: Callable[..., Any]) -> Callable[..., Any]:
    def hydra_subprocess_cmd(*args: Any, **kwargs: Any) -> Any:
        command, *folder = original(*args, **kwargs)
        return (_under_probe(command), *folder)

    return hydra_subprocess_cmd
