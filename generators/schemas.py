"""JSON Schemas of what commands print with --json, from their dataclasses."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from rankskew.compare.comparison import Comparison
from rankskew.flight_recorder.match import HangReport
from rankskew.replay.replay import ReplayedJobs
from rankskew.report.incidents import IncidentsReport
from rankskew.report.job import JobReport

# By the name of the schema: the command, the page that explains it, and what it prints.
DOCUMENTS: Final[Mapping[str, tuple[str, str, type]]] = {
    "compare": ("rankskew compare", "compare.md", Comparison),
    "flight-recorder": ("rankskew flight-recorder", "hang.md", HangReport),
    "replay": ("rankskew replay", "replay.md", ReplayedJobs),
    "report-incidents": ("rankskew report --incidents", "report.md", IncidentsReport),
    "report-job": ("rankskew report --job", "report.md", JobReport),
}
# Every field is printed, and the string below it says what it is.
AS_PRINTED: Final = ConfigDict(
    use_attribute_docstrings=True, json_schema_serialization_defaults_required=True
)


def schema(kind: str) -> str:
    """Return the text of the schema of *kind*."""
    command, page, document = DOCUMENTS[kind]
    found = _schema(document)
    said = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{command} --json",
        "description": f"What {command} --json prints; docs/{page} explains it.",
        "type": "object",
        "properties": {"schema": {"const": f"{kind}/1"}, **found["properties"]},
        "required": ["schema", *found["required"]],
        "$defs": found.get("$defs", {}),
    }
    return json.dumps(said, indent=2) + "\n"


def _schema(document: type) -> dict[str, Any]:
    for each in _dataclasses(document):
        each.__pydantic_config__ = AS_PRINTED  # type: ignore[attr-defined]  # Only for this.
    return dict(_plain(TypeAdapter(document).json_schema(mode="serialization")))


def _dataclasses(hint: Any) -> Iterator[type]:
    """Yield the dataclasses that *hint* consists of."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
        for each in get_type_hints(hint).values():
            yield from _dataclasses(each)
    for each in get_args(hint):
        yield from _dataclasses(each)


def _plain(part: Any) -> Any:
    """Return *part* without titles and defaults, which say nothing, and with texts in one line."""
    if isinstance(part, list):
        return [_plain(each) for each in part]
    if not isinstance(part, dict):
        return " ".join(part.split()) if isinstance(part, str) else part
    return {
        name: _plain(each)
        for name, each in part.items()
        if name != "default" and not (name == "title" and isinstance(each, str))
    }
