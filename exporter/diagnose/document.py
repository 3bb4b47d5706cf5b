"""The report as one JSON document, for programs; docs/diagnose.md describes it."""

import json
from dataclasses import asdict
from typing import Any

from exporter.diagnose.model import EXIT_STATUS, Report


def as_json(report: Report) -> str:
    """Return *report* as a JSON object."""
    said: dict[str, Any] = {
        "outcome": report.outcome,
        "exit_status": EXIT_STATUS[report.outcome],
        **asdict(report),
        "cost_per_hour": report.cost_per_hour,
    }
    return json.dumps(said, indent=2, allow_nan=False)


def cannot_tell(sentence: str) -> str:
    """Return the document that says why there is no report."""
    said = {"outcome": "cannot_tell", "exit_status": 2, "trouble": sentence}
    return json.dumps(said, indent=2)
