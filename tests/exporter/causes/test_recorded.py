"""Evidence of real late ranks, recorded once while `benchmarks.causes` planted what delays them."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.causes.score import RIGHT, RIGHT_WHEN_BUSY, UNKNOWN
from exporter.causes.explain import explain
from exporter.causes.model import Cause, Evidence, Lateness, Quantiles, ThreadState

RECORDED: Final = Path(__file__).parents[2] / "fixtures" / "causes" / "planted.jsonl"
CASES: Final = [json.loads(line) for line in RECORDED.read_text().splitlines()]
# All four ranks wait for a CPU for a third of the time; the worker has no peer to compare with.
CANNOT_BE_TOLD: Final = [("hog", True), ("workers", True)]


def explained(case: dict[str, Any]) -> Cause:
    """Return why the rank of a recorded *case* was late."""
    found = explain(
        Lateness(**case["late"]),
        Evidence(
            case["figures"],
            [ThreadState(*each) for each in case["states"]],
            [ThreadState(*each) for each in case["workers"]],
            case["facts"],
        ),
        {name: Quantiles(*each) for name, each in case["peers"].items()},
    )
    assert found is not None
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda each: f"{each['planted']}-{each['busy']}")
def test_what_was_planted_is_told(case: dict[str, Any]) -> None:
    """Also with all CPUs busy, except where nothing that was measured tells it: then unknown."""
    planted, busy = case["planted"], case["busy"]
    found = explained(case)
    right = [*RIGHT[planted], *(RIGHT_WHEN_BUSY.get(planted, ()) if busy else ())]

    if (planted, busy) in CANNOT_BE_TOLD:
        right = [UNKNOWN]
    assert {found.cause, f"{found.cause}/{found.detail}"} & set(right), found
