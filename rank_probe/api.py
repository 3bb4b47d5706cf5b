"""The manual API, on top of this process's single probe."""

import atexit
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from rank_probe.guest.guard import log, never_raise
from rank_probe.measure import events
from rank_probe.measure.tape import fetching
from rank_probe.measure.work_units import Measure
from rank_probe.process import children, identity
from rank_probe.wire.stages import DATA, OTHER, STAGES

if TYPE_CHECKING:
    from rank_probe.measure.timeline import Timeline
    from rank_probe.probe import Probe

P = ParamSpec("P")
T = TypeVar("T")

_probe: "Probe | None" = None
_inherited: "Probe | None" = None  # The parent's, in a forked child: off, but attached.
_of_parent: children.StartOptions | None = (
    None  # The parent's options, if `_probe` was started with them.
)
_stages: dict[str, AbstractContextManager[None]] = {}  # Cached, so that a step allocates nothing.
_OFF: AbstractContextManager[None] = nullcontext()
MOST_NAMES: Final = 2 * len(STAGES)  # Most entries in `_stages`, misspelt names included.
_next: Callable[[Iterator[Any]], Any] = next  # timed while the probe runs


@never_raise
def start(
    *,
    automatic: bool = False,
    job_id: str | None = None,
    peer_group: str | None = None,
    measure: Measure | None = None,
) -> None:
    """Start the probe in this process; it times the calling thread.

    Later calls do nothing, so a script that calls `start` also works under `-m rank_probe`. A later
    call logs the arguments that it ignores; but in a child process that began with its parent's
    options, the first call replaces them. *job_id* defaults to RANKSKEW_JOB_ID, else to the
    launcher's name for the run. *peer_group* names the ranks that should do equal work. It defaults
    to RANKSKEW_PEER_GROUP, else to the pipeline stage and GPU model where known, else to `all`.
    *measure* takes a batch and returns its samples, tokens and padding tokens, each None if
    unknown. Without *measure*, tensors, lists of them and Hugging Face batches are counted.
    """
    if os.environ.get("RANK_PROBE") == "0":
        return
    options = children.StartOptions(automatic, job_id, peer_group, measure)
    if children.is_being_prepared():
        # The child still imports the script, and may turn out to be a loader's worker.
        is_rank = functools.partial(identity.is_certain, os.environ)
        children.arrive(options, start_as_child, is_rank)
    elif _probe is None:
        _start(options)
    elif _of_parent is not None and _of_parent != options:
        stop(clean=False)  # The rank's own options override its parent's.
        _start(options)
    else:
        known = _probe.options.items()
        ignored = [name for name, now in known if getattr(options, name) not in (None, now)]
        _warn_of_ignored(", ".join(ignored))


def arrive_as_child(**options: Any) -> None:
    """Start the probe once this child, which multiprocessing is preparing, becomes a rank."""
    children.arrive(children.StartOptions(**options), start_as_child)


def start_as_child(options: children.StartOptions) -> None:
    """Start the probe with the parent's *options* in a child that turned out to be a rank."""
    global _of_parent
    if _probe is None:
        _start(options)
        _of_parent = options


def _start(options: children.StartOptions) -> None:
    from rank_probe.probe import Probe  # Takes 0.1 s, which a child may never need.

    global _probe, _of_parent, _next
    children.stop_waiting()
    if _inherited is not None:
        _inherited.detach()
    try:
        probe = Probe(
            automatic=options.automatic,
            job_id=options.job_id,
            peer_group=options.peer_group,
            measure=options.measure,
        )
    except ValueError as error:
        log.warning("rank_probe is off: %s", error)
        return
    probe.attach()
    probe.start_pushing()
    os.register_at_fork(after_in_child=_forget)
    atexit.register(_finish_at_exit)
    children.follow(options, start_as_child, probe.own_rank.is_rank)
    children.at_end(lambda clean: stop(clean=clean))
    _stages.clear()
    _stages.update((name, _Stage(probe.timeline, number)) for number, name in enumerate(STAGES))
    _next = fetching(probe.timeline.tape, next, probe.work.measure, count=probe.work.count)
    _probe, _of_parent = probe, None


@functools.cache
def _warn_of_ignored(arguments: str) -> None:
    if arguments:
        log.warning(
            "rank_probe: the probe runs already, so start() ignores its %s. Set RANKSKEW_JOB_ID "
            "and RANKSKEW_PEER_GROUP instead, or start the script without -m rank_probe.",
            arguments,
        )


def stage(name: str) -> AbstractContextManager[None]:
    """Charge the time spent in a `with` block to stage *name*, one of stages.STAGES.

    Waiting in collectives inside the block still goes to `sync`. An unknown name is logged and
    timed as `other`.
    """
    if _probe is None:
        return _OFF
    return _stages.get(name) or _other(name)


def staged(name: str, function: Callable[P, T]) -> Callable[P, T]:
    """Return *function* with its time charged to stage *name*; for integrations."""

    @functools.wraps(function)
    def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        with stage(name):
            return function(*args, **kwargs)

    return timed


def step() -> None:
    """Complete a training step; call it once after the optimizer's step.

    The step is committed up to its last release; later time belongs to the next step.
    """
    probe = _probe
    if probe is not None:
        probe.timeline.tape.note(events.STEP)


def count(*, samples: int = 0, tokens: int = 0, padding_tokens: int = 0) -> None:
    """Count work that the probe cannot see in a batch; *tokens* include *padding_tokens*."""
    probe = _probe
    if probe is not None:
        probe.work.add(samples=samples, tokens=tokens, padding_tokens=padding_tokens)


def annotate(
    *,
    dp: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    peer_group: str | None = None,
) -> None:
    """Set this rank's coordinates, before training, if no DeviceMesh or pipeline stage shows them.

    Ranks of one *peer_group* should do equal work; by default they share *pp* and the GPU model.
    """
    probe = _probe
    if probe is not None:
        probe.annotate(dp=dp, tp=tp, pp=pp, peer_group=peer_group)


def running() -> bool:
    """Whether the probe runs in this process."""
    return _probe is not None


def timeline() -> "Timeline | None":
    """Return the timeline that the probe's hooks drive, for integrations; None without a probe."""
    return None if _probe is None else _probe.timeline


def wrap(loader: Iterable[T]) -> "TimedLoader[T]":
    """Return *loader* with the time spent fetching from it charged to stage `data`."""
    return TimedLoader(loader)


def finish() -> None:
    """Mark this rank finished and stop the probe; automatic when the process ends cleanly."""
    stop(clean=True)


def abandon() -> None:
    """Stop the probe without marking the rank finished, so that a failed run is noticed."""
    stop(clean=False)


def stop(*, clean: bool) -> None:
    """Stop the probe, for integrations; only a *clean* end marks the rank finished."""
    global _probe, _next
    if _probe is not None:
        _probe.finish(clean=clean)
        _probe, _next = None, next
        children.leave_alone()


class TimedLoader(Generic[T]):
    """An iterable that times each fetch; everything else is delegated to the loader."""

    def __init__(self, loader: Iterable[T]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[T]:
        with stage(STAGES[DATA]):
            batches = iter(self._loader)
        while True:
            try:
                batch = _next(batches)
            except StopIteration:
                return
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises for a loader without a length

    def __getattr__(self, name: str) -> Any:
        # Python looks special methods up on the class. A lookup here comes from copy or pickle,
        # which want this object, not the loader. A new copy has no `_loader` yet.
        if name == "_loader" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)


class _Stage:
    """The `with` block of one stage; it is stateless, so one object serves every use."""

    __slots__ = ("_enter", "_note")

    def __init__(self, timeline: "Timeline", stage: int) -> None:
        self._note = timeline.tape.note
        self._enter = events.ENTER | stage

    def __enter__(self) -> None:
        self._note(self._enter)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._note(events.LEAVE)


def _other(name: str) -> AbstractContextManager[None]:
    """Return the stage `other` for an unknown name; warn once of each of the first few."""
    other = _stages[STAGES[OTHER]]
    if len(_stages) < MOST_NAMES:  # A script may make up a name in each step.
        log.warning(
            "rank_probe: %r is not a stage, so it is timed as other; the stages are %s",
            name,
            ", ".join(STAGES),
        )
        _stages[name] = other
    return other


def _forget() -> None:
    """Turn the probe off in a forked child."""
    global _probe, _inherited, _next
    if _probe is not None:
        _probe.forget_in_child()
        _probe, _inherited, _next = None, _probe, next


def _finish_at_exit() -> None:
    # The interpreter stores an uncaught exception in sys.last_value before it runs exit handlers.
    stop(clean=getattr(sys, "last_value", None) is None)
