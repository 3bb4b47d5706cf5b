"""What the probe replaces in torch, what it needs of it, and that torch.compile notices nothing."""

import gc
import importlib
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import pytest
import torch

from rank_probe.guest.guard import failures
from rank_probe.probe import Probe
from rank_probe.torch_hooks import dynamo, private
from rank_probe.torch_hooks.private import find
from rank_probe.torch_hooks.store import obstacle
from tests.rank_probe.forks import Zygote

PROBE: Final = Path(dynamo.DIRECTORY)


def answer_of(
    zygote: Zygote, folder: Path, module: str, *arguments: str, **environment: str
) -> Any:
    """Return what the last line that a job prints says."""
    job = f"tests.rank_probe.torch_hooks.{module}"
    fork = zygote.start(folder / "output", job, *arguments, **environment)
    status, said = fork.wait(280), fork.output.read_text()
    assert status == 0, said[-4000:]
    return json.loads(said.splitlines()[-1])


def test_everything_that_a_hook_may_call_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo would compile the rest between two graphs, which makes them three."""
    hidden: set[CodeType] = set()
    monkeypatch.setattr(dynamo, "_skip", lambda: hidden.add)
    probe = Probe(automatic=True, environment={})
    probe.attach()
    made = {each.__code__ for each in gc.get_objects() if type(each) is FunctionType}
    probe.detach()
    folders = tuple(f"{PROBE}/{name}/" for name in ("guest", "measure", "torch_hooks"))
    ours = {code for code in made if code.co_filename.startswith(folders)}

    assert len(ours) > 200
    # What stands for torch where there is none, and what this test has replaced.
    assert {code.co_name for code in ours - hidden} == {"<lambda>", "_skip"}


# Code is generated for as long as a minute; what the probe could change comes before that.
GENERATES_CODE = pytest.param("inductor", marks=pytest.mark.nightly)


@pytest.fixture(scope="module", params=["aot_eager", GENERATES_CODE])
def outcomes(
    request: pytest.FixtureRequest, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each arm counted without the probe, with it from the start, and from midway on."""
    folder = tmp_path_factory.mktemp("compile")
    cache = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache"}
    found: dict[str, dict[str, Any]] = answer_of(
        zygote, folder, "compile_job", request.param, **cache
    )
    return found


ARMS = ["ddp", "ddp_around", "whole_step", "compiled_autograd", "collective"]


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


BEHAVIOURS = 11


@pytest.mark.jobs
def test_replacement_behaves_as_the_function_it_stands_for(zygote: Zygote, tmp_path: Path) -> None:
    """Whatever works with the bare function works, and gives the same; all are put back."""
    files = {str(path.relative_to(PROBE)) for path in PROBE.rglob("*.py") if replaces(path)}
    answers = answer_of(zygote, tmp_path, "functions_job")

    assert len(answers) == 2  # With the tape in C and in Python.
    for answer in answers:
        worse = [
            (behaviour, place, found)
            for behaviour, places in answer["worse"].items()
            for place, found in places.items()
        ]
        assert len(answer["worse"]) == BEHAVIOURS
        assert worse == []
        assert set(answer["files"]) == files
        assert answer["absent"] == []
        assert answer["changed_for_good"] == []
        assert answer["failures"] == 0


def replaces(path: Path) -> bool:
    return re.search(r"patches\.wrap\b", path.read_text()) is not None


# Py_TPFLAGS_HEAPTYPE
HEAP_TYPE: Final = 1 << 9


def is_immutable(owner: Any) -> bool:
    """Whether it is a type that is written in C."""
    return isinstance(owner, type) and not owner.__flags__ & HEAP_TYPE


def take_away(monkeypatch: pytest.MonkeyPatch, module: Any, path: str) -> None:
    """Delete what is at *path*; with what holds it, if that is an object in C."""
    parent, _, name = path.rpartition(".")
    owner = find(module, parent) if parent else module
    is_own = name in getattr(owner, "__dict__", ()) and not is_immutable(owner)
    if is_own and not name.startswith("__"):  # Each class has those.
        monkeypatch.delattr(owner, name)
    else:
        take_away(monkeypatch, module, parent)


def names_looked_for() -> list[tuple[Any, str, str]]:
    """Return what the hooks may do without: its owner, its path there, what is said then."""
    for late in ("checkpoint", "fsdp", "pipelining"):
        importlib.import_module(f"torch.distributed.{late}")
    known: dict[tuple[int, str], tuple[Any, str, str]] = {}

    def recording(owner: Any, path: str, without: str = "") -> Any:
        if without:
            known[id(owner), path] = owner, path, without
        return find(owner, path, without)

    with pytest.MonkeyPatch.context() as patch, suppress(ValueError):
        for name, module in list(sys.modules.items()):
            if name.startswith("rank_probe.") and vars(module).get("find") is find:
                patch.setattr(module, "find", recording)
        probe = Probe(automatic=True, environment={})
        probe.attach()
        probe.detach()
        obstacle()  # There is no group.
    return list(known.values())


def test_probe_attaches_without_each_name_of_torch() -> None:
    """No error, but a sentence; all other hooks are there, and go again."""
    wait = torch.distributed.Work.wait
    names = names_looked_for()
    hidden = "torch.compile also compiles the probe, with graph breaks around it."
    assert len(names) >= 30
    for owner, path, said in (*names, (torch._C, "_dynamo.eval_frame", hidden)):
        with pytest.MonkeyPatch.context() as patch:
            take_away(patch, owner, path)
            patch.setattr(private, "limitations", {})
            probe = Probe(automatic=True, environment={})
            probe.attach()
            with suppress(ValueError):
                obstacle()
            told = [*private.limitations]
            probe.detach()
        assert (path, said in told, failures.count) == (path, True, 0)
        assert torch.distributed.Work.wait == wait


def test_nothing_is_missed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """This torch is one that the probe knows, whatever of it was imported."""
    monkeypatch.setattr(private, "limitations", {})
    probe = Probe(automatic=True, environment={})
    probe.attach()
    probe.detach()

    assert private.limitations == {}
