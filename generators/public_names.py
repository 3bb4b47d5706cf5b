"""The names that users write into their own queries, rules, scripts and jobs.

`python -m generators.public_names` writes them to the file beside this one, as part of a release;
from then on a test keeps each of them (docs/lifecycle.md).
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import rank_probe
from exporter.scrape.levels import exposed_name
from exporter.vocabulary.thresholds import defaults
from generators import alert_rules, metrics
from generators.files import ROOT
from rank_probe.wire.stages import STAGES
from rankskew.commands.table import COMMANDS, load

FILE: Final = Path(__file__).with_name("public_names.txt")
# A recorded series is public if one of these pages or dashboards shows it, unless its name ends in
# `:group`: it then only carries labels from one rule to the next.
PAGES: Final = ("docs/*.md", "*/README.md", "deploy/*/README.md", "dashboards/json/*.json")
SCHEMAS: Final = ROOT / "docs" / "schemas"


def names() -> list[str]:
    """Return one line for each name, with the labels of a metric, sorted."""
    shown = "".join(path.read_text() for pattern in PAGES for path in ROOT.glob(pattern))
    records = [
        f"record {name}" for name in recorded() if name in shown and not name.endswith(":group")
    ]
    alerts = (f"alert {name}" for name in alert_rules.alerts())
    thresholds = (f"threshold {name}" for name in defaults())
    return sorted({*exposed(), *records, *alerts, *thresholds, *interfaces(), *fields()})


def exposed() -> Iterator[str]:
    """Yield each metric and its labels."""
    for _, _, families in metrics.families_by_collector():
        for family in families:
            yield f"metric {exposed_name(family)}{{{','.join(metrics.labels(family))}}}"


def recorded() -> set[str]:
    """Return the names of all recorded series."""
    return {rule["record"] for rule in alert_rules.all_rules() if "record" in rule}


def interfaces() -> Iterator[str]:
    """Yield flags, variables, the Python API and the stages."""
    for command in COMMANDS:
        for action in load(command).parser()._actions:
            long = [each for each in action.option_strings if each.startswith("--")]
            yield from (f"flag rankskew {command} {each}" for each in long)
    page = (ROOT / "docs" / "configuration.md").read_text()
    yield from (f"variable {name}" for name in re.findall(r"^\| `(RANK\w+)`", page, re.MULTILINE))
    yield from (f"python rank_probe.{name}" for name in rank_probe.__all__)
    yield from (f"stage {stage}" for stage in STAGES)


def fields() -> Iterator[str]:
    """Yield each field of each document that a command prints with --json."""
    for path in SCHEMAS.glob("*.json"):
        schema = json.loads(path.read_text())
        name = schema["properties"]["schema"]["const"]
        yield from (f"field {name} {field}" for field in _fields(schema, schema))


def _fields(schema: dict[str, Any], whole: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of *schema*, nested ones included; expand a recursive definition once."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        rest = {each: part for each, part in whole["$defs"].items() if each != name}
        yield from _fields(whole["$defs"].get(name, {}), whole | {"$defs": rest})
    within = (schema[key] for key in ("items", "additionalProperties") if key in schema)
    for part in (*schema.get("anyOf", ()), *within):
        yield from _fields(part, whole)
    for name, field in schema.get("properties", {}).items():
        yield name
        yield from (f"{name}.{each}" for each in _fields(field, whole))


if __name__ == "__main__":
    FILE.write_text("".join(f"{name}\n" for name in names()))
