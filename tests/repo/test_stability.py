"""What a release has promised stays: names that users write, and what snapshots say.

Probes and exporters of different releases understand each other, within one snapshot schema.

tests/fixtures/ingest has for each schema the first snapshot of it, and the rules of an exporter
that knows the fields of that one and no others, as /openapi.json tells them. Rewrite neither.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from exporter.ingest.schema import SnapshotBody, parse
from generators import public_names
from rank_probe.wire.figures import FIGURES
from rank_probe.wire.snapshot import LIFECYCLE_EVENTS, SCHEMA
from rank_probe.wire.stages import STAGES
from tests.exporter.snapshots import CHANGE, snapshot, verdict

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ingest"
SCHEMAS = sorted(int(path.stem.rsplit("_", 1)[1]) for path in FIXTURES.glob("snapshot_schema_*"))
# Fields that the first exporter of this schema did not know.
NEWER = {"late_lines", "lifecycle_events", "thread_states", "peer_figures", "loader"}
NEWER |= {"limitations", "no_join", "group_formed_timestamp_seconds"}


def load(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text())


def everything() -> dict[str, Any]:
    """Return a snapshot of today in which every field says something."""
    seconds = dict.fromkeys(STAGES, 1.5)
    said = snapshot(
        stage_seconds=seconds,
        stage_host_seconds=seconds,
        block_seconds=seconds,
        wait_caused_seconds=seconds,
        rank_info={"local_rank": "1", "a_newer_label": "x"},
        verdict=json.loads(json.dumps(verdict(changes=(CHANGE,)))),
        late_lines=[{"stage": "data", "place": "f (a.py:1)", "share": 0.5}],
        lifecycle_events=[
            {"number": 1, "event": event, "began_timestamp_seconds": 1.0, "seconds": None}
            for event in LIFECYCLE_EVENTS
        ],
        thread_states=[{"stage": "data", "state": "sleep", "share": 0.5, "place": "f (a.py:1)"}],
        peer_figures={name: [1.0, 2.0, 3.0] for name in FIGURES},
        loader="Corpus.__getitem__ (corpus.py:30)",
        limitations=["A wait is not timed."],
        no_join="file_store",
        group_formed_timestamp_seconds=1.0,
    )
    return asdict(said)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_older_probe_reports_to_this_exporter(schema: int) -> None:
    """The first snapshot of each schema is taken, with nothing in it unknown."""
    body = (FIXTURES / f"snapshot_schema_{schema}.json").read_bytes()
    taken, unknown_fields = parse(body)

    assert (taken.steps, taken.job_id, unknown_fields) == (100, "llama", 0)


def test_this_probe_reports_to_the_oldest_exporter() -> None:
    """All that a probe of today can say breaks no rule of the first exporter of its schema.

    That exporter leaves out what is new, and counts it.
    """
    jsonschema = pytest.importorskip("jsonschema", reason="scripts/setup.sh test installs it")
    rules = load(f"rules_schema_{SCHEMA}.json")
    body = everything()
    jsonschema.validate(body, rules)

    assert body.keys() - rules["properties"].keys() == NEWER
    with pytest.raises(jsonschema.ValidationError, match="'lunch' is not one of"):
        jsonschema.validate(body | {"stage": "lunch"}, rules)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_rules_of_a_schema_stay(schema: int) -> None:
    """A field keeps its type, limits and words, and none becomes required."""
    assert schema == SCHEMA, "this exporter has dropped or added a schema: see docs/lifecycle.md"
    today = TypeAdapter(SnapshotBody).json_schema()

    assert list(changes(load(f"rules_schema_{schema}.json"), today)) == []


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield where *after* lacks, or has otherwise, what *before* has."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from changes(value, after.get(key), f"{path}.{key}" if path else key)
    elif before != after:
        yield f"{path} was {before}, is {after}"


def still_there(promised: str, today: set[str], bridges: set[str]) -> bool:
    """Whether *promised* exists, has a record as its bridge, or has gained labels of an _info."""
    kind, _, name = promised.partition(" ")
    if promised in today or (kind in ("metric", "record") and name.partition("{")[0] in bridges):
        return True
    series, _, labels = name.rstrip("}").partition("{")
    return series.endswith("_info") and any(
        each.startswith(f"metric {series}{{")
        and set(labels.split(",")) <= set(re.split(r"[,{}]", each))
        for each in today
    )


def test_every_promised_name_exists_or_is_bridged() -> None:
    """Users have them in rules, dashboards, scripts and jobs; see docs/lifecycle.md."""
    kept = public_names.FILE.read_text().splitlines()
    today, bridges = set(public_names.names()), public_names.recorded()

    assert {name.partition(" ")[0] for name in kept} == {name.partition(" ")[0] for name in today}
    assert [name for name in kept if not still_there(name, today, bridges)] == []
