"""Tests of the probe beside torch.compile: it costs no graph break and no compilation."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]


# Code is generated for as long as a minute; what the probe could change comes before that.
GENERATES_CODE = pytest.param("inductor", marks=pytest.mark.nightly)


@pytest.fixture(scope="module", params=["aot_eager", GENERATES_CODE])
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each arm counted without the probe, with it from the start, and from midway on."""
    cache = str(tmp_path_factory.mktemp("cache"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.rank_probe.torch_hooks.compile_job", request.param],
        cwd=ROOT,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


ARMS = ["plain", "ddp", "ddp_around", "whole_step", "compiled_autograd", "collective"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("arm", ARMS)
def test_probe_adds_no_graph_break_and_no_compilation(
    arm: str, when: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    """Attached before or after compilation, graphs are the same, and so is what is learnt."""
    never, with_probe = outcomes[arm]["never"], outcomes[arm][when]

    assert never["graphs"]["unique_graphs"] >= 1
    assert with_probe["graphs"] == never["graphs"]
    assert with_probe["breaks"] <= never["breaks"]
    assert never["late_compilations"] == 0
    # torch compiles an optimizer's step again when a hook is added to it; no other arm has one.
    assert with_probe["late_compilations"] == 0 or (arm, when) in (
        ("whole_step", "after"),
        ("compiled_autograd", "after"),
    )
    assert with_probe["parameters"] == never["parameters"]
