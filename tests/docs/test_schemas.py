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


def read(path: Path) -> dict[str, Any]:
    """Return the schema in a file."""
    return dict(json.loads(path.read_text()))


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
    """The kinds that the code prints are the files, and no others."""
    printed = {
        kind
        for package in ("rank_probe", "exporter", "rankskew")
        for path in (ROOT / package).glob("**/*.py")
        for match in PRINTED.finditer(path.read_text())
        for kind in match.groups()
        if kind
    }

    assert len(printed) > 10
    assert printed == {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_schema_says_what_each_field_is(path: Path) -> None:
    """It is a JSON Schema, names its document and the version, and explains every field."""
    schema = read(path)
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_page_of_scripts_lists_it(path: Path) -> None:
    """Whoever looks for documents finds all in one place."""
    assert f"(schemas/{path.name})" in (ROOT / "docs" / "commands.md").read_text()


SAID: dict[str, Any] = {"schema": "control/1", "job_id": "a", "level": "off", "rank": 0, "ranks": 1}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"more": 1}, "Additional properties are not allowed"),
        ({"schema": "control/2"}, "'control/1' was expected"),
        ({"ranks": None}, "None is not of type 'integer'"),
    ],
)
def test_document_that_is_not_as_described_fails(change: dict[str, Any], complaint: str) -> None:
    """So a field that nobody described, and one that is gone, fail in the tests of its command."""
    check(SAID)
    with pytest.raises(ValidationError, match=complaint):
        check(SAID | change)
    with pytest.raises(ValidationError, match="not valid under any of the given schemas"):
        check({name: value for name, value in SAID.items() if name != "level"})
