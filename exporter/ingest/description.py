"""Describes in OpenAPI the one route that FastAPI does not serve: the push of a snapshot."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.constants import REF_TEMPLATE
from pydantic import TypeAdapter

from exporter.ingest.schema import RESULTS, SnapshotBody
from rank_probe.wire.snapshot import LEVELS, SNAPSHOT_PATH
from rank_probe.wire.stages import STAGES, SYNC

ANSWER: Final = {
    "type": "object",
    "properties": {
        "level": {
            "type": "string",
            "enum": list(LEVELS),
            "description": "How much the rank should time from now on; absent without an order.",
        },
        "late": {
            "type": "string",
            "enum": [stage for stage in STAGES if stage != STAGES[SYNC]],
            "description": "The stage in which the rank is late, compared with the ranks of this "
            "node; absent if it is not, and if its job has a judge.",
        },
    },
}
REFUSAL: Final = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "One sentence: what is wrong, what to do."}
    },
    "required": ["error"],
}


def describe_snapshots(app: FastAPI) -> None:
    """Add the push to the description of *app*."""
    of_the_rest = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = of_the_rest()
            schema = TypeAdapter(SnapshotBody).json_schema(ref_template=REF_TEMPLATE)
            schemas = description.setdefault("components", {}).setdefault("schemas", {})
            schemas |= schema.pop("$defs") | {"Snapshot": schema}
            description["paths"][SNAPSHOT_PATH] = {"post": _operation()}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # FastAPI's documented way to extend it


def _operation() -> dict[str, Any]:
    results: dict[int, list[str]] = {}
    for result, status in RESULTS.items():
        results.setdefault(status, []).append(result)
    return {
        "summary": "Push the state of one rank",
        "description": "A snapshot is cumulative: a later one contains everything in earlier ones, "
        "so a lost or repeated one does no harm.",
        "operationId": "push_snapshot",
        "requestBody": {
            "required": True,
            "content": _json({"$ref": REF_TEMPLATE.format(model="Snapshot")}),
        },
        "responses": {
            str(status): {
                "description": " or ".join(results[status]).replace("_", " "),
                "content": _json(ANSWER if status == 200 else REFUSAL),
            }
            for status in results
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
