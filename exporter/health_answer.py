"""The answer to a health check: whether the exporter is well, and if not, why."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import Response
from fastapi.responses import PlainTextResponse

# Why a check fails, None if it does not.
WhyNot = Callable[[], str | None]

FAILED: Final[dict[int | str, dict[str, Any]]] = {
    503: {"description": "It is not; the text says why", "content": {"text/plain": {}}}
}


def health_answer(what: str, why_not: str | None) -> Response:
    """Return the answer to whether the exporter is *what*: 200, or 503 with *why_not*."""
    if why_not is None:
        return PlainTextResponse(f"The exporter is {what}.\n")
    return PlainTextResponse(f"{why_not}\n", 503)
