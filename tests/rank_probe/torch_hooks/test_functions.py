"""Tests of all that the probe replaces: it behaves as the function that stood there."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]
PROBE = ROOT / "rank_probe"
# An operator hashes as what it calls: that has to be an object with the hash of the original.
EXCEPT = {"is a routine": "_c10d_functional.wait_tensor"}


@pytest.fixture(scope="module", params=["compiled", "python"])
def outcome(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a process with all integrations found, with the tape in C and in Python."""
    command = [sys.executable, "-m", "tests.rank_probe.torch_hooks.functions_job", request.param]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


BEHAVIOURS = (
    *("pickle", "cloudpickle", "copy", "deepcopy", "weakref", "hash", "hash of the owner"),
    *("signature", "type hints", "source", "documentation", "name", "functools.wraps"),
    *("is a function", "is a routine", "torch.compile leaves it", "arguments"),
)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_replacement_behaves_as_the_function_it_stands_for(
    behaviour: str, outcome: dict[str, Any]
) -> None:
    """Whatever works with the bare function works, and gives the same."""
    worse = outcome["worse"][behaviour]

    assert {
        place: found
        for place, found in worse.items()
        if behaviour not in EXCEPT or EXCEPT[behaviour] not in place
    } == {}


def test_nothing_that_is_replaced_is_left_out(outcome: dict[str, Any]) -> None:
    """Every file of the probe that replaces something did so, and put it back."""
    files = {str(path.relative_to(PROBE)) for path in PROBE.rglob("*.py") if replaces(path)}

    assert set(outcome["files"]) == files
    assert outcome["changed_for_good"] == []
    assert outcome["failures"] == 0
    assert set(outcome["worse"]) == set(BEHAVIOURS)


def replaces(path: Path) -> bool:
    return re.search(r"patches\.wrap\b", path.read_text()) is not None
