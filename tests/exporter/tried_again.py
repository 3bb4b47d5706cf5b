"""Tests of what must come in time, on machines that now and then stop for longer."""

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

P = ParamSpec("P")

ATTEMPTS: Final = 3
# What comes too late fails an assertion, or drops the connection of the test itself.
TOO_LATE: Final = (AssertionError, ConnectionError, EOFError)


def tried_again(test: Callable[P, None]) -> Callable[P, None]:
    """Run *test* again, with the same fixtures, if it fails: a real fault fails each time."""

    @functools.wraps(test)
    def tried(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ATTEMPTS - 1):
            try:
                return test(*args, **kwargs)
            except TOO_LATE as error:
                print(f"{test.__name__} is tried again: {error}")
        return test(*args, **kwargs)

    return tried
