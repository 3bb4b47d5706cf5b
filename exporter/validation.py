"""Explains in one sentence what is wrong with posted JSON, and what to do."""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

OURS: Final = "rankskew"
SAME_RELEASE: Final = "install the same release of rankskew on both sides"
NOT_JSON: Final = "The body is not JSON; send one JSON object."


def wrong(what_and_what_to_do: str) -> PydanticCustomError:
    """Return a validator's error, such as "is not a stage; use one of data, forward"."""
    # A context value, not the template itself: the text may contain braces.
    return PydanticCustomError(OURS, "{sentence}", {"sentence": what_and_what_to_do})


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotates a string that must be one of *names*; *what* describes each, such as "a stage"."""

    what: str
    names: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}

    def _check(self, name: str) -> str:
        if name not in self.names:
            raise wrong(f"is not {self.what}; use one of {', '.join(self.names)}")
        return name


def sentence(error: ErrorDetails, what: str) -> str:
    """Return *error* as a sentence; *what* was posted is "The snapshot" or similar."""
    kind, message = error["type"], error["msg"].removeprefix("Value error, ")
    where = _place(error) or what
    if kind == "json_invalid":
        return NOT_JSON
    if kind == "dataclass_type":
        return f"{where} must be a JSON object, sent as application/json."
    if kind == OURS:
        return f"{where} {message}."
    if kind == "missing":
        return f"{where} is missing; {SAME_RELEASE}."
    return f"{where} is wrong: {message[:1].lower()}{message[1:]}."


def _place(error: ErrorDetails) -> str:
    """Return the location of the error. Its keys come from the caller: shortened and escaped."""
    parts = [ascii(str(part))[1:-1][:40] for part in error["loc"] if part != "[key]"]
    return f"Field {'.'.join(parts)}" if parts else ""
