"""The one JSON document that a command prints with --json."""

import json
from collections.abc import Mapping
from typing import Any


def as_document(kind: str, said: Mapping[str, Any], version: int = 1) -> str:
    """Return *said*, which has no NaN, after the name and *version* of its schema.

    docs/schemas has one of each *kind*. A version changes where a program could be misled; a new
    field changes none.
    """
    return json.dumps({"schema": f"{kind}/{version}", **said}, indent=2, allow_nan=False)
