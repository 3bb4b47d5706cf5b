"""Prints how each function that the probe replaces behaves, before and after; see the test.

One answer for each tape that the hooks write to: that in C, then that in Python.
"""

import copy
import functools
import importlib
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray.train
import torch
from accelerate import Accelerator
from lightning.pytorch import Trainer
from ray import cloudpickle
from torch._dynamo import trace_rules
from torch._dynamo.variables import SkipFunctionVariable

import rank_probe
from rank_probe.guest.guard import failures
from rank_probe.guest.patches import Patches
from rank_probe.integrations import accelerate, deepspeed, lightning, ray_train, transformers
from rank_probe.measure import timeline
from rank_probe.measure.tape import PythonTape
from rank_probe.process import relaunch
from rank_probe.torch_hooks import checkpoints, process_group
from rank_probe.torch_hooks.copies import MOVERS
from rank_probe.torch_hooks.private import find

PROBE = Path(rank_probe.__file__).parent
# Modules whose functions are replaced once they are imported; a version may lack some.
LATE = (
    *("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.checkpoint"),
    *(name for name, _ in checkpoints.PLACES),
    *(name for name, _, _ in MOVERS),
    *relaunch.MODULES,
)

Place = tuple[Any, str]
places: dict[str, Place] = {}
files: set[str] = set()  # that replace something


def wraps(function: Any) -> list[object]:
    def theirs() -> None:
        return None

    wrapper = functools.wraps(function)(theirs)
    return [wrapper.__name__, wrapper.__doc__, str(inspect.signature(wrapper))]


def is_left_by_dynamo(function: Any) -> bool:
    """Whether torch.compile calls it, and does not compile what it does."""
    if inspect.getattr_static(function, "_torchdynamo_disable", False):
        return True
    return trace_rules.lookup(function) is SkipFunctionVariable


def takes_any_arguments(function: Any) -> bool:
    """Whether a replacement takes what the function may take in another version, too."""
    code = getattr(function, "__code__", None)
    if code is None or not Path(code.co_filename).is_relative_to(PROBE):
        return True
    is_iterators = function.__name__ in ("__iter__", "__next__")  # Python calls them.
    any_arguments = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return is_iterators or code.co_flags & any_arguments == any_arguments


BEHAVIOURS: dict[str, Callable[[Any], object]] = {
    "pickle": lambda function: pickle.loads(pickle.dumps(function)) is function,
    "cloudpickle": lambda function: cloudpickle.loads(cloudpickle.dumps(function)) is function,
    "deepcopy": lambda function: copy.deepcopy([function])[0] is function,
    "hash": lambda function: {function: 1}[function],
    "signature": lambda function: str(inspect.signature(function)),
    "source": inspect.getsource,
    "documentation": inspect.getdoc,
    "is a function": inspect.isfunction,
    "functools.wraps": wraps,
    "torch.compile leaves it": is_left_by_dynamo,
    "arguments": takes_any_arguments,
}


def behaviour(place: Place) -> dict[str, object]:
    """Return what each of BEHAVIOURS gives for what is there; None where it raises."""
    function = getattr(*place)
    found: dict[str, object] = {}
    for name, of in BEHAVIOURS.items():
        try:
            found[name] = of(function)
        except Exception:  # noqa: BLE001 - then the replacement may raise as well
            found[name] = None
    return found


def absent() -> list[str]:
    """Return what the probe replaces once it is imported, and no longer has its name."""
    named = [(module, paths) for module, paths in (*checkpoints.PLACES, *checkpoints.EVALUATIONS)]
    named += [(module, (f"{owner}.{name}" if owner else name,)) for module, owner, name in MOVERS]
    return [
        f"{module}: {path}"
        for module, paths in named
        for path in paths
        if find(importlib.import_module(module), path) is None
    ]


def stored() -> dict[str, object]:
    """Return what is there itself; None where it is inherited."""
    return {path: vars(owner).get(name) for path, (owner, name) in places.items()}


def recorded(patches: Patches, owner: Any, name: str, make: Any) -> None:
    """Replace as ever, and remember what."""
    frame = sys._getframe(1)
    files.add(str(Path(frame.f_code.co_filename).relative_to(PROBE)))
    places[f"{owner!r}.{name}"] = owner, name
    wrap(patches, owner, name, make)


@contextmanager
def attached(trainer: Any, accelerator: Any) -> Iterator[None]:
    """Have replaced what the probe, its launcher and its integrations replace."""
    with ExitStack() as stack:
        patches = relaunch.attach()
        stack.callback(patches.undo)
        process_group.before_created(torch, patches, lambda: None)
        rank_probe.start(automatic=True)
        stack.callback(rank_probe.finish)
        for attach, detach in (
            (deepspeed.attach, deepspeed._patches.undo),
            (ray_train.attach, ray_train._patches.undo),
        ):
            attach()
            stack.callback(detach)
        trains = transformers.RankskewCallback()
        trains.attach()
        stack.callback(trains.detach)
        stack.callback(accelerate.attach(accelerator).patches.undo)
        fits = lightning.RankskewCallback()
        fits._attach(trainer)
        stack.callback(fits._patches.undo)
        yield


def answer(trainer: Any, accelerator: Any) -> dict[str, object]:
    """Return the files that replace something, and every behaviour that changed for the worse."""
    with attached(trainer, accelerator):
        pass
    bare, before = {name: behaviour(place) for name, place in places.items()}, stored()
    with attached(trainer, accelerator):
        ours = {name: behaviour(place) for name, place in places.items()}
    worse: dict[str, dict[str, list[object]]] = {}
    for name, behaviours in bare.items():
        for what, was in behaviours.items():
            changed = worse.setdefault(what, {})
            if was not in (None, False, ours[name][what]):
                changed[name] = [was, ours[name][what]]
    after = stored()
    return {
        "files": sorted(files),
        "failures": failures.count,
        "absent": absent(),
        "worse": worse,
        "changed_for_good": [name for name in places if after[name] is not before[name]],
    }


def main() -> None:
    """Print the answers."""
    for name in LATE:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    ray.train.get_context = lambda: SimpleNamespace(get_experiment_name=lambda: "name")
    trainer, accelerator = Trainer(logger=False, enable_checkpointing=False), Accelerator(cpu=True)
    answers = [answer(trainer, accelerator)]
    timeline.new_tape = PythonTape  # type: ignore[attr-defined]  # imported there
    places.clear()
    answers.append(answer(trainer, accelerator))
    print(json.dumps(answers))


wrap = Patches.wrap
Patches.wrap = recorded  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    main()
