"""The only place of the probe that catches: no error of ours ever reaches the user's code."""

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("rank_probe")


class Failures:
    """How often the probe itself failed in this process; the first failure is logged."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, where: str) -> None:
        """Count a failure in *where*; call it from an except block."""
        self.count += 1
        if self.count == 1:
            log.warning(
                "rank_probe failed in %s; training continues, but the probe's timings may stop. "
                "Later failures are only counted (rankskew_probe_errors_total).",
                where,
                exc_info=True,
            )


failures = Failures()


def never_raise(function: Callable[P, R]) -> Callable[P, R | None]:
    """Return *function* with every Exception counted instead of raised; it then returns None.

    KeyboardInterrupt and SystemExit pass: they are the user's.
    """
    guarded = _of_one(function) if _takes_one(function) else _of_many(function)
    return cast(Callable[P, R | None], functools.wraps(function)(guarded))


def _takes_one(function: Callable[..., object]) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    return len(parameters) == 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def _of_one(function: Callable[..., R]) -> Callable[[Any], R | None]:
    """Guard a function of one argument, at half the cost; most boundaries are such calls."""

    def guarded(only: Any) -> R | None:
        try:
            return function(only)
        except Exception:  # noqa: BLE001 - the guard: a probe must not break training
            failures.note(getattr(function, "__qualname__", repr(function)))
            return None

    return guarded


def _of_many(function: Callable[..., R]) -> Callable[..., R | None]:
    def guarded(*args: Any, **kwargs: Any) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the guard: a probe must not break training
            failures.note(getattr(function, "__qualname__", repr(function)))
            return None

    return guarded
