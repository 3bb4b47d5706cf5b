"""The one place of the probe that catches: nothing of ours ever reaches the user's code."""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("rank_probe")


class Failures:
    """How often the probe itself failed in this process; the first failure is logged."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, where: str) -> None:
        """Count a failure in *where*, from within an except block."""
        self.count += 1
        if self.count == 1:
            log.warning(
                "rank_probe failed in %s; training goes on, its timings may not. "
                "Later failures are only counted (rankskew_probe_errors_total).",
                where,
                exc_info=True,
            )


failures = Failures()


def never_raise(function: Callable[P, R]) -> Callable[P, R | None]:
    """Return *function* with every Exception counted instead of raised; it then returns None.

    KeyboardInterrupt and SystemExit pass: they are the user's.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception:  # noqa: BLE001 - the guard: a probe must not break training
            failures.note(function.__qualname__)
            return None

    return guarded
