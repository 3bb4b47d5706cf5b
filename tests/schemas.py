"""Holds what commands print with --json against docs/schemas."""

import functools
import json
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

SCHEMAS: Final = Path(__file__).parents[1] / "docs" / "schemas"


def check(said: dict[str, Any]) -> None:
    """Raise a ValidationError unless *said* has the fields of its schema, and no others."""
    kind, _, _ = said["schema"].partition("/")
    _validator(kind).validate(json.loads(json.dumps(said)))


@functools.cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(closed(json.loads((SCHEMAS / f"{kind}.json").read_text())))


def closed(schema: Any) -> Any:
    """Return *schema* without room for fields that it does not name.

    Programs have to bear new fields, but our own documents have none that is not described.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {} if "properties" not in schema else {"additionalProperties": False}
    return rest | {name: closed(each) for name, each in schema.items()}
