"""The one JSON document that a command prints with --json."""

import json
from collections.abc import Mapping
from typing import Any


def as_document(kind: str, said: Mapping[str, Any]) -> str:
    """Return *said*, which has no NaN, after the name and version of its schema.

    docs/schemas has one of each *kind*. A version changes where a program could be misled; a new
    field changes none.
    """
    return json.dumps({"schema": f"{kind}/1", **said}, indent=2, allow_nan=False)
