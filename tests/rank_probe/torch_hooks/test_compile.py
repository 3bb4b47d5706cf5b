"""What the probe replaces in torch, what it needs of it, and that torch.compile notices nothing."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.probe import Probe
from rank_probe.torch_hooks import private
from rank_probe.torch_hooks.private import find, limitations
from rank_probe.torch_hooks.store import obstacle
from rank_probe.wire.no_join import OTHER_STORE
from tests.rank_probe.forks import Zygote

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


@pytest.mark.jobs
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
    request: pytest.FixtureRequest, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each arm counted without the probe, with it from the start, and from midway on."""
    folder = tmp_path_factory.mktemp("compile")
    job = ("tests.rank_probe.torch_hooks.compile_job", request.param)
    fork = zygote.start(folder / "output", *job, TORCHINDUCTOR_CACHE_DIR=f"{folder}/cache")
    status, said = fork.wait(280), fork.output.read_text()
    assert status == 0, said[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(said.splitlines()[-1])
    return found


ARMS = ["plain", "ddp", "ddp_around", "whole_step", "compiled_autograd", "collective"]


@pytest.mark.jobs
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
BEHAVIOURS = 17
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


@pytest.mark.jobs
def test_replacement_behaves_as_the_function_it_stands_for(outcome: dict[str, Any]) -> None:
    """Whatever works with the bare function works, and gives the same; all are put back."""
    files = {str(path.relative_to(PROBE)) for path in PROBE.rglob("*.py") if replaces(path)}
    worse = [
        (behaviour, place, found)
        for behaviour, places in outcome["worse"].items()
        for place, found in places.items()
        if behaviour not in EXCEPT or EXCEPT[behaviour] not in place
    ]

    assert len(outcome["worse"]) == BEHAVIOURS
    assert worse == []
    assert set(outcome["files"]) == files
    assert outcome["changed_for_good"] == []
    assert outcome["failures"] == 0


def replaces(path: Path) -> bool:
    return re.search(r"patches\.wrap\b", path.read_text()) is not None


SAVER, STAGE = "torch.distributed.checkpoint.state_dict_saver", "torch.distributed.pipelining.stage"
# By module, those that this torch has; a part of what the probe says without each.
PRIVATE: Final = (
    ("torch.autograd", "Variable._execution_engine.queue_callback", "end of backward"),
    ("torch", "Tensor._backward_hooks", "cut at its root"),
    ("torch._C", "_FunctionBase._register_hook_dict", "cut at its root"),
    ("torch.autograd", "_get_sequence_nr", "between DDP's forward and backward"),
    ("torch._C", "_FunctionBase._sequence_nr", "between DDP's forward and backward"),
    ("torch._C", "_FunctionBase._input_metadata", "between DDP's forward and backward"),
    ("torch.distributed", "Work._get_op_type", "end at a broadcast"),
    ("torch._C", "_distributed_c10d.OpType", "end at a broadcast"),
    ("torch.distributed", "ProcessGroup._allgather_base", "NCCL's wait"),
    ("torch.distributed", "ProcessGroup._reduce_scatter_base", "NCCL's wait"),
    ("torch._C", "Future", "Waits for a future"),
    ("torch.distributed.distributed_c10d", "_new_process_group_helper", "a later group"),
    ("torch", "ops._c10d_functional.wait_tensor._op", "Waits of tensor parallelism"),
    ("torch.distributed", "Reducer._rebuild_buckets", "order of its buckets"),
    ("torch.distributed", "_broadcast_coalesced", "With BatchNorm"),
    ("torch.distributed", "_verify_params_across_processes", "In a second model"),
    ("torch._C", "_current_graph_task_id", "Waits in a backward on CUDA"),
    ("torch._C", "_dynamo.eval_frame", "compiles the probe"),
    ("torch.serialization", "_save", "that a script imported early"),
    ("torch.serialization", "_legacy_save", "that a script imported early"),
    (SAVER, "_save_state_dict", "that a script imported early"),
    (SAVER, "_stateful_to_state_dict", "that a script imported early"),
    (SAVER.replace("saver", "loader"), "_load_state_dict", "that a script imported early"),
    (STAGE, "_PipelineStageBase", "Chunks of a pipeline schedule"),
    (STAGE, "stage_backward_input", "zero-bubble"),
    (STAGE, "stage_backward_weight", "zero-bubble"),
    (STAGE.replace("stage", "schedules"), "_PipelineSchedule._maybe_compute_loss", "The loss"),
    ("torch.distributed.distributed_c10d", "_get_default_store", "no join"),
    ("torch.distributed.distributed_c10d", "_update_default_pg", "formed anew"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "Fetching is part"),
)


# Py_TPFLAGS_HEAPTYPE
HEAP_TYPE: Final = 1 << 9


def is_immutable(owner: Any) -> bool:
    """Whether it is a type that is written in C."""
    return isinstance(owner, type) and not owner.__flags__ & HEAP_TYPE


def take_away(monkeypatch: pytest.MonkeyPatch, module: Any, path: str) -> None:
    """Delete what is at *path*; with what holds it, if that is an object in C."""
    parent, _, name = path.rpartition(".")
    owner = find(module, parent) if parent else module
    if name in getattr(owner, "__dict__", ()) and not is_immutable(owner):
        monkeypatch.delattr(owner, name)
    else:
        take_away(monkeypatch, module, parent)


@pytest.fixture
def without(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Take a name away from torch; return a part of what is said then."""
    module, path, said = request.param
    take_away(monkeypatch, importlib.import_module(module), path)
    monkeypatch.setattr(private, "limitations", {})
    yield said
    monkeypatch.undo()


@pytest.mark.parametrize("without", PRIVATE, indirect=True, ids=lambda row: row[1])
def test_probe_attaches_without_it(without: str) -> None:
    """No error, but a sentence; all other hooks are there, and go again."""
    wait = torch.distributed.Work.wait
    probe = Probe(automatic=True, environment={})
    probe.attach()
    try:
        if without == "no join":  # Asked when a group is formed.
            assert obstacle() == OTHER_STORE
        assert any(without in each for each in private.limitations)
        assert failures.count == 0
    finally:
        probe.detach()
    assert torch.distributed.Work.wait == wait


def test_nothing_is_missed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This torch is one that the probe knows, whatever of it was imported."""
    monkeypatch.setattr(private, "limitations", {})
    probe = Probe(automatic=True, environment={})
    probe.attach()
    probe.detach()

    assert private.limitations == {}


def test_another_name_that_serves_as_well_is_no_loss() -> None:
    """Only what has a sentence is one."""
    assert find(torch, "of.no.release") is None
    assert "" not in limitations
