"""Processes that a script starts with multiprocessing: ranks, or helpers of one.

A child may be a rank, a worker of a loader or pool, or a manager. The launcher's variables do not
show which, because every child inherits them. A child is a rank once it creates a process group:
every rank of a distributed job does, and no helper of torch or Python does. Until then the child is
not timed, pushes nothing and runs no probe thread; one function of torch is patched.

A child that trains alone, without a process group, is timed only if its own function calls `start`.
Otherwise several such children would all be rank 0 of 1.

Children of a rank are its helpers, whatever they do (an inference engine makes groups of its own).
"""

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from rank_probe.guest.guard import never_raise
from rank_probe.guest.imports import imported, when_imported
from rank_probe.guest.patches import Patches
from rank_probe.measure.work_units import Measure
from rank_probe.torch_hooks import process_group

# Runs while multiprocessing prepares the child, before any user code. It must not fail where the
# child cannot import the probe, or the child would not start.
_ARRIVE: Final = """
import contextlib, sys
path = list(sys.path)
sys.path.append(folder)
with contextlib.suppress(ImportError):
    from rank_probe import api
    api.arrive_as_child(**options)
sys.path[:] = path
"""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What `start` was given."""

    automatic: bool = False
    job_id: str | None = None
    peer_group: str | None = None
    measure: Measure | None = None


# What starts the probe in this process.
Start = Callable[[StartOptions], object]


class _Following:
    """What becomes of the children of this process; *options* is None while nothing does."""

    def __init__(self) -> None:
        self.options: StartOptions | None = None
        self.start: Start = lambda options: None
        self.is_rank: Callable[[], bool] = lambda: False
        self.is_registered = False
        self.waiting: Patches | None = None  # in a child that may become a rank


_following = _Following()


def is_being_prepared() -> bool:
    """Whether multiprocessing is importing the script's modules here for a child yet to begin.

    Their module-level calls are not meant for the child. multiprocessing checks the same flag
    before it lets a process start children. The forkserver process counts too.
    """
    return bool(getattr(_current(), "_inheriting", False))


def is_child() -> bool:
    """Whether multiprocessing started this process."""
    process = imported("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def index() -> int | None:
    """Return the place of this process among those that torch.multiprocessing started at once."""
    process = _current()
    target = getattr(process, "_target", None)
    if getattr(target, "__module__", "") != "torch.multiprocessing.spawn":
        return None
    arguments: tuple[Any, ...] = getattr(process, "_args", ())
    place = arguments[1] if len(arguments) > 1 else None  # the function, its place, its arguments
    return place if isinstance(place, int) else None


def follow(options: StartOptions, start: Start, is_rank: Callable[[], bool]) -> None:
    """Call *start* with *options* in children that turn out to be ranks.

    *is_rank* says whether this process is one itself: its children are then left alone.
    """
    _following.options, _following.start, _following.is_rank = options, start, is_rank
    if not _following.is_registered:
        _following.is_registered = True
        when_imported("multiprocessing.util", _tell_forked_children)
        when_imported("multiprocessing.spawn", _tell_spawned_children)


def stop_waiting() -> None:
    """Undo the patches that wait for a process group: the probe now starts in this child."""
    if _following.waiting is not None:
        _following.waiting.undo()


def leave_alone() -> None:
    """Start the probe in no child any more."""
    _following.options = None


@never_raise
def arrive(
    options: StartOptions, start: Start, is_rank: Callable[[], bool] = lambda: False
) -> None:
    """Call *start* with *options* if this child, which is being prepared, becomes a rank.

    Its own children are followed too.
    """
    follow(options, start, is_rank)
    _begin_as_child(_following)


def at_end(end: Callable[[bool], object]) -> None:
    """Call *end* when the child's own function has ended, with whether it did so cleanly.

    Exit handlers do not run in forked children, and in others they see no exception.
    """
    if not is_child():
        return
    from multiprocessing import util

    @never_raise
    def ended() -> None:
        end(_ends_cleanly())

    util.Finalize(None, ended, exitpriority=100)


def _ends_cleanly() -> bool:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return error.code in (None, 0)
    # If the parent dies, torch.multiprocessing ends its processes with an interrupt and hides it.
    # Ctrl-C is hidden too, but whoever pressed it knows.
    parent = sys.modules["multiprocessing.process"].parent_process()
    return error is None and parent.is_alive()


def _current() -> object:
    """Return multiprocessing's object for this process; None if it has not been imported."""
    process = imported("multiprocessing.process")
    return None if process is None else process.current_process()


def _tell_forked_children(util: Any) -> None:
    util.register_after_fork(_following, _begin_as_child)


def _tell_spawned_children(spawn: Any) -> None:
    original = spawn.get_preparation_data

    @functools.wraps(original)
    def get_preparation_data(*args: Any, **kwargs: Any) -> Any:
        prepared = original(*args, **kwargs)
        note = _note_for_child()
        return prepared if note is None else {**prepared, "rank_probe": note}

    spawn.get_preparation_data = get_preparation_data


@never_raise
def _note_for_child() -> "_Note | None":
    options = _following.options
    if options is None or _following.is_rank():
        return None
    return _Note(options)


class _Note:
    """Runs _ARRIVE when the child reads it. The data for the child's preparation carries it.

    It is not part of the Process: users pickle theirs in their own ways, and what they pass in it
    stays as it was.
    """

    def __init__(self, options: StartOptions) -> None:
        # A function of the script's cannot be read yet when the child reads this.
        self._options = asdict(replace(options, measure=None))

    def __reduce__(self) -> tuple[Any, ...]:
        folder = str(Path(__file__).parents[2])
        return exec, (_ARRIVE, {"folder": folder, "options": self._options})


@never_raise
def _begin_as_child(following: _Following) -> None:
    """Wait for the process group, which makes this child a rank."""
    if following.options is None or following.waiting is not None or following.is_rank():
        return
    if os.environ.get("RANK_PROBE") != "0":
        following.waiting = Patches()
        following.waiting.on_undo(when_imported("torch", _wait_for_group))


def _wait_for_group(torch: Any) -> None:
    if _following.waiting is not None:
        process_group.before_created(torch, _following.waiting, _become_rank)


@never_raise
def _become_rank() -> None:
    options, _following.options = _following.options, None
    stop_waiting()
    if options is not None:
        _following.start(options)
