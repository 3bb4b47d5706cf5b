"""What the probe replaces behaves as what stood there, and costs torch.compile nothing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[3]


# Trains on a GPU, as far as the probe can tell, and prints what of the probe ran unhidden.
REACHED = """
import io, json, sys, types
from rank_probe.torch_hooks import dynamo
hidden, reached = set(), set()
dynamo._skip = lambda: hidden.add
from rank_probe import api
api.start(automatic=True)
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

def follow(frame, event, _):
    if event == "call" and frame.f_code.co_filename.startswith(dynamo.DIRECTORY):
        reached.add(frame.f_code)

class Event:
    def __init__(self, **_): pass
    def record(self, stream): pass
    def query(self): return True
    def elapsed_time(self, other): return 1.0

gpu = types.SimpleNamespace(uuid="0", pci_domain_id=0, pci_bus_id=0, pci_device_id=0, name="H100")
torch._C._CudaEventBase = Event
torch._C._cuda_getCurrentRawStream = lambda device: 0
torch._C._cuda_isCurrentStreamCapturing = lambda: False
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.current_stream = lambda device=None: 0
torch.cuda.get_device_properties = lambda device: gpu
torch.cuda.get_device_name = lambda device: gpu.name
sys.setprofile(follow)
for _ in range(2):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rows in DataLoader(torch.ones(16, 2), batch_size=2):
        model(rows).sum().backward()
        optimizer.step(closure=lambda: None)
        with api.stage("eval"):
            pass
        api.step()
    torch.save(model.state_dict(), io.BytesIO())
    dist.destroy_process_group()
sys.setprofile(None)
api.finish()
unhidden = {f"{code.co_filename}:{code.co_name}" for code in reached - hidden}
print(json.dumps([len(reached), sorted(unhidden)]))
"""


def test_everything_that_a_hook_reaches_is_hidden_before_the_first_hook(tmp_path: Path) -> None:
    """Dynamo would compile the rest between two graphs, which makes them three."""
    done = subprocess.run(
        [sys.executable, "-c", REACHED],
        env=os.environ | {"RANKSKEW_EXPORTER": f"unix:{tmp_path}/s"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    reached, unhidden = json.loads(done.stdout)

    assert reached > 50
    assert unhidden == []


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
