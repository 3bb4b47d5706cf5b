"""Checks what commands print: documents against docs/schemas, texts against golden files.

The golden files are below tests/fixtures/client and have whole texts.
`WRITE_GOLDEN=1 python -m pytest tests/rankskew` rewrites them: review what has changed.
"""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator

GOLDEN: Final = Path(__file__).parent / "fixtures" / "client"
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

    Programs must tolerate new fields, but our own documents have only described ones.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {} if "properties" not in schema else {"additionalProperties": False}
    return rest | {name: closed(each) for name, each in schema.items()}


def assert_golden(name: str, texts: Mapping[str, str]) -> None:
    """Assert that *texts*, each below its heading, equal the golden file *name*."""
    said = "\n".join(f"==== {heading} ====\n{text.rstrip()}\n" for heading, text in texts.items())
    file = GOLDEN / f"{name}.txt"
    if "WRITE_GOLDEN" in os.environ:
        file.write_text(said)
    assert said == file.read_text()
