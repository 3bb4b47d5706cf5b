"""Programs can hold every document of --json against its JSON Schema."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests.schemas import SCHEMAS, check

ROOT = Path(__file__).parents[2]
PRINTED = re.compile(r'as_document\(\s*"([\w-]+)"(?: if [\w.]+ else "([\w-]+)")?')
FILES = sorted(SCHEMAS.glob("*.json"))


def fields(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every field that a schema names, with what it says of it."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for part in schema.values():
            yield from fields(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from fields(part)


def test_every_document_has_a_schema() -> None:
    """The kinds that the code prints are the files, and no others; one page lists them."""
    printed = {
        kind
        for package in ("rank_probe", "exporter", "rankskew")
        for path in (ROOT / package).glob("**/*.py")
        for match in PRINTED.finditer(path.read_text())
        for kind in match.groups()
        if kind
    }
    listed = re.findall(r"\(schemas/(.+?)\.json\)", (ROOT / "docs" / "commands.md").read_text())

    assert len(printed) > 10
    assert printed == {path.stem for path in FILES} == set(listed)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_schema_says_what_each_field_is(path: Path) -> None:
    """It is a JSON Schema, names its document and the version, and explains every field."""
    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)

    assert re.fullmatch(rf"{path.stem}/\d+", schema["properties"]["schema"]["const"])
    assert schema["title"]
    assert schema["description"]
    unexplained = [
        name
        for name, said in fields(schema)
        if name != "schema" and not said.get("description", "").endswith(".")
    ]
    assert unexplained == []


SAID: dict[str, Any] = {"schema": "control/1", "job_id": "a", "level": "off", "rank": 0, "ranks": 1}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, None),
        ({"more": 1}, "Additional properties are not allowed"),
        ({"schema": "control/2"}, "'control/1' was expected"),
        ({"ranks": None}, "None is not of type 'integer'"),
        ({"level": ...}, "not valid under any of the given schemas"),
    ],
)
def test_document_that_is_not_as_described_fails(
    change: dict[str, Any], complaint: str | None
) -> None:
    """So a field that nobody described, and one that is gone, fail in the tests of its command."""
    said = {name: value for name, value in (SAID | change).items() if value is not ...}
    if complaint is None:
        check(said)
    else:
        with pytest.raises(ValidationError, match=complaint):
            check(said)
