"""The answer to a refused order: a status, and one sentence as `error`."""

from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from exporter.operator.levels import NobodyThere
from exporter.ranks.store import Forbidden
from exporter.validation import sentence


@dataclass(frozen=True, slots=True)
class Ordered:
    """How many reporting *ranks* the order applies to."""

    ranks: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """*error* is one sentence: what is wrong, and what to do."""

    error: str


REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": Refusal} for status in (400, 403, 404, 422)
}


def say_what_is_wrong(app: FastAPI, served: str) -> None:
    """Make *app* answer everything it refuses with a Refusal; *served* names what it serves."""

    async def not_valid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        # FastAPI prepends the part of the request ("body") to the location inside the body.
        return _refusal(422, sentence(first | {"loc": first["loc"][1:]}, "The body"))

    async def nobody(_: Request, error: Exception) -> JSONResponse:
        return _refusal(404, str(error))

    async def forbidden(_: Request, error: Exception) -> JSONResponse:
        return _refusal(403, str(error))

    async def other(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        elsewhere = f": this serves {served}" if error.status_code in (404, 405) else ""
        return _refusal(error.status_code, f"{error.detail}{elsewhere}.", error.headers)

    app.add_exception_handler(RequestValidationError, not_valid)
    app.add_exception_handler(NobodyThere, nobody)
    app.add_exception_handler(Forbidden, forbidden)
    app.add_exception_handler(HTTPException, other)


def _refusal(status: int, error: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)
