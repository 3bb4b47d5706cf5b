"""Reads a trace of torch.profiler: what its device's kernels, or its CPU's operators, took."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exporter.errors import UsageError, reason

COMMUNICATION, COPIES, OTHER = "communication", "copies", "other"
# By the name of a kernel or an operator, the first that fits: NCCL's reduction is no reduction.
_CLASSES: Final = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        (COMMUNICATION, r"nccl|gloo|c10d|all_?reduce|all_?gather|reduce_?scatter"),
        ("attention", r"flash|fmha|attention|sdpa"),
        ("convolution", r"conv(?!ert)|wgrad|dgrad|winograd"),
        ("GEMM", r"gemm|cutlass|cublas|nvjet|::(add|b|bad)?d?mm(_|$)|matmul|::linear$"),
        (COPIES, r"memcpy|memset|copy_|::(contiguous|clone|fill_|zero_)$"),
        ("reduction", r"reduce|norm|softmax|::(sum|mean|argmax|amax|topk)$"),
        ("elementwise", r"elementwise|pointwise|::(add|sub|mul|div|relu|gelu|silu|tanh|exp)_?$"),
    )
)
_ON_DEVICE: Final = {"kernel": "", "gpu_memcpy": COPIES, "gpu_memset": COPIES}
# As the probe marks its steps (rank_probe.report.profile), and as torch.profiler marks each.
_MARK: Final = re.compile(r"rankskew: (\d+) steps|ProfilerStep#\d+")

# Twice what the probe would write.
MOST_BYTES: Final = 2**29

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProfiledOperation:
    """What an operation takes a step: *seconds*, in *calls*; *kind* is its class."""

    kind: str = OTHER
    seconds: float = 0.0
    calls: float = 0.0


@dataclass(frozen=True, slots=True)
class ProfileTrace:
    """Of one rank: its *operations* by name, on the device if it *has_device*.

    An operator's time on the CPU is its own, without that of the operators that it calls.
    """

    step_seconds: float
    has_device: bool
    operations: Mapping[str, ProfiledOperation]

    def seconds_of(self, kind: str) -> float:
        """Return the seconds a step of a class of operations."""
        return sum(each.seconds for each in self.operations.values() if each.kind == kind)


def read_trace(path: Path) -> ProfileTrace:
    """Return what is in the file *path*, whoever named it; raises UsageError."""
    try:
        if path.stat().st_size > MOST_BYTES or not path.is_file():
            raise UsageError(f"{path} is too large, or no file")
        return trace_of(json.loads(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path}: {reason(error)}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a whole trace of torch.profiler") from error


def trace_of(document: Event) -> ProfileTrace:
    """Return what a trace in Chrome's format says."""
    whole = [each for each in document["traceEvents"] if each.get("ph") == "X"]
    marks = [each for each in whole if each["cat"] == "user_annotation"]
    found = [(each, match) for each in marks if (match := _MARK.match(each["name"]))]
    steps = sum(int(match[1] or 1) for _, match in found) or 1
    wall = sum(each["dur"] for each, _ in found) or sum(each["dur"] for each in whole)
    operators = [each for each in whole if each["cat"] == "cpu_op"]
    kernels = [each for each in whole if each["cat"] in _ON_DEVICE]
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    calls: dict[tuple[str, str], int] = defaultdict(int)
    for name, kind, microseconds in _kernels(kernels, operators) if kernels else _own(operators):
        seconds[name, kind] += microseconds / 1e6
        calls[name, kind] += 1
    operations = {
        f"{name} ({kind})" if kernels else name: ProfiledOperation(
            kind, each / steps, calls[name, kind] / steps
        )
        for (name, kind), each in seconds.items()
    }
    return ProfileTrace(wall / 1e6 / steps, bool(kernels), operations)


def kind_of(name: str) -> str:
    """Return the class of a kernel or an operator of this *name*."""
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), OTHER)


def _kernels(
    kernels: Iterable[Event], operators: Iterable[Event]
) -> Iterator[tuple[str, str, float]]:
    """Yield each kernel's operator, its class and its microseconds."""
    names = {each["args"].get("External id"): each["name"] for each in operators}
    for each in kernels:
        name = names.get(each["args"].get("External id")) or each["name"]
        yield str(name), _ON_DEVICE[each["cat"]] or kind_of(each["name"]), each["dur"]


def _own(operators: Iterable[Event]) -> Iterator[tuple[str, str, float]]:
    """Yield each operator, its class, and its microseconds without the operators that it calls."""
    own: list[tuple[Event, list[float]]] = []
    stacks: dict[Any, list[tuple[float, list[float]]]] = defaultdict(list)
    for each in sorted(operators, key=lambda each: (each["ts"], -each["dur"])):
        stack = stacks[each["pid"], each["tid"]]
        while stack and stack[-1][0] <= each["ts"]:
            stack.pop()
        if stack:
            stack[-1][1].append(-each["dur"])
        spent = [each["dur"]]
        stack.append((each["ts"] + each["dur"], spent))
        own.append((each, spent))
    for each, spent in own:
        yield each["name"], kind_of(each["name"]), max(sum(spent), 0.0)
