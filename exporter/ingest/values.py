"""What a field of a pushed snapshot may be: each kind of value with its limits."""

import dataclasses
from typing import Annotated, Any, Final, cast

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationInfo,
)
from pydantic_core import CoreSchema, core_schema

from exporter.validation import OneOf, wrong
from rank_probe.judge.verdict import REASONS, SENT_AS, SENT_KINDS, WAIT_KINDS
from rank_probe.wire.snapshot import LEVELS, LIFECYCLE_EVENTS, LONGEST_TEXT, THREAD_STATES
from rank_probe.wire.stages import STAGES

# Enough for any real name; a longer one costs memory in every Prometheus downstream.
LABEL_CHARACTERS: Final = 128
# The largest integer up to which a Prometheus sample (a double) is exact.
LARGEST_COUNT: Final = 2**53
# More than any clock or run needs, and small enough that no sum or square overflows a double.
LARGEST_AMOUNT: Final = 1e15


def _printable(text: str) -> str:
    if not text.isprintable():
        raise wrong("has characters that cannot be printed; use plain text")
    return text


def _without_scripts(at: dict[str, str]) -> dict[str, str]:
    """Leave out a page that is no address on the web: it is a link on the pages of other nodes."""
    is_link = at.get("page", "").startswith(("http://", "https://"))
    return {name: each for name, each in at.items() if is_link or name != "page"}


@dataclasses.dataclass(frozen=True, slots=True)
class Only:
    """Drops unknown keys, which a newer probe may send, and records them in the context."""

    keys: tuple[str, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._keep, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        value = handler(schema)["additionalProperties"]
        return {"type": "object", "properties": dict.fromkeys(self.keys, value)}

    def _keep(self, value: Any, context: ValidationInfo) -> Any:
        if not isinstance(value, dict) or value.keys() <= set(self.keys):
            return value
        cast(list[str], context.context).extend(value.keys() - set(self.keys))
        return {key: value[key] for key in value.keys() & set(self.keys)}


InfoValue = Annotated[
    str, StringConstraints(max_length=LABEL_CHARACTERS), AfterValidator(_printable)
]
Label = Annotated[
    str, StringConstraints(min_length=1, max_length=LABEL_CHARACTERS), AfterValidator(_printable)
]
# A path, or a sentence.
Text = Annotated[str, StringConstraints(max_length=LONGEST_TEXT), AfterValidator(_printable)]
# Where a rank is: see rank_probe.process.facts.
At = Annotated[dict[Label, Text], Field(max_length=32), AfterValidator(_without_scripts)]
Stage = Annotated[str, OneOf("a stage", STAGES)]
ThreadState = Annotated[str, OneOf("a state of a thread", THREAD_STATES)]
Level = Annotated[str, OneOf("a level", LEVELS)]
EventName = Annotated[str, OneOf("an event", LIFECYCLE_EVENTS)]
LateKind = Annotated[str, OneOf("a way to be late", SENT_KINDS)]
LostKind = Annotated[str, OneOf("what GPUs are lost to", WAIT_KINDS)]
LostApart = Annotated[str, OneOf("what GPUs are lost to", tuple(SENT_AS))]
Reason = Annotated[str, OneOf("a reason why nobody can be judged", REASONS)]
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
# A time, a ratio, a number of GPUs.
Amount = Annotated[float, Field(ge=0, le=LARGEST_AMOUNT, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Figure = Annotated[float, Field(ge=-LARGEST_AMOUNT, le=LARGEST_AMOUNT, allow_inf_nan=False)]
# Lower third, median, upper third.
PeersFigure = Annotated[list[Figure], Field(min_length=3, max_length=3)]
