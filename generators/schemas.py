"""JSON Schemas of what commands print with --json, and tables of the fields, from dataclasses."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from generators.markdown import table
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


def fields(kind: str) -> str:
    """Return a row for each field of the documents of *kind*."""
    found = _schema(DOCUMENTS[kind][2])
    return table(("field", "what it is"), _rows(found, found.get("$defs", {}), "", {}))


def _rows(
    part: Mapping[str, Any], parts: Mapping[str, Any], above: str, listed: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the fields of *part*; those of a part that is *listed* already are there."""
    for name, field in part["properties"].items():
        path = f"{above}{name}"
        within = next(iter(_references(field)), None)
        if within is None or within not in listed:
            yield f"`{path}`", field["description"]
        else:
            yield f"`{path}`", f"{field['description']} Fields as in `{listed[within]}`."
        if within is not None and within not in listed:
            listed[within] = path
            yield from _rows(parts[within], parts, f"{path}.", listed)


def _references(field: Any) -> Iterator[str]:
    """Yield the names of the parts that *field* consists of."""
    if isinstance(field, dict):
        if "$ref" in field:
            yield field["$ref"].rpartition("/")[2]
        field = list(field.values())
    for each in field if isinstance(field, list) else ():
        yield from _references(each)


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
