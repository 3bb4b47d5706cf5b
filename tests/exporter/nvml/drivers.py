"""Drivers without a GPU: a fake one that answers by function name, and workers on the stub.

The fake one is for tests of the calls on one GPU; the stub, under a supervisor, for all others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pynvml

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.process import WorkerProcess
from exporter.nvml.readings.fields import Field
from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import GpuSample, NodeSample
from exporter.nvml.supervisor import NvmlSupervisor
from exporter.nvml.timing import Timing
from tests.exporter.running import wait_until


class Fails(Exception):
    """An answer: the call returns this nvmlReturn_t."""

    def __init__(self, code: int = pynvml.NVML_ERROR_NOT_SUPPORTED) -> None:
        super().__init__(code)
        self.code = code


TIMES_OUT = Fails(pynvml.NVML_ERROR_TIMEOUT)


class Driver(Calls):
    """Answers each function with *answers*: a value, a function of its arguments, or Fails.

    A function of ours that has no answer is run, on pynvml's. *asked* counts the calls.
    """

    def __init__(self, **answers: Any) -> None:
        super().__init__(60.0, 60.0)
        self.answers: dict[str, Any] = {"nvmlDeviceGetHandleByIndex": "handle"} | answers
        self.asked: Counter[str] = Counter()

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = function.__name__
        try:
            if name in self.answers or function.__module__ == pynvml.__name__:
                return self._answer(name, *args)
            return self._run(function, *args)
        except pynvml.NVMLError as error:
            raise CallFailed(name, gpu, error.value, "as the test wants") from None

    def fail(self, *names: str, code: int) -> None:
        """Let these functions fail from now on."""
        self.answers |= dict.fromkeys(names, Fails(code))

    def opened(self) -> Ask:
        """Return the GPU as if it had just been opened."""
        return Ask(0, "handle", self)

    def _answer(self, name: str, *args: Any) -> Any:
        self.asked[name] += 1
        answer = self.answers.get(name, Fails())
        try:
            told = answer(*args) if callable(answer) else answer
            if isinstance(told, Fails):
                raise told
            return told
        except Fails as failure:
            raise pynvml.NVMLError(failure.code) from None

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        self.asked[function.__name__] += 1
        with ExitStack() as stack:
            refuse = mock.Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
            stack.enter_context(mock.patch.object(pynvml, "_nvmlGetFunctionPointer", refuse))
            for name in filter(partial(hasattr, pynvml), self.answers):
                stack.enter_context(mock.patch.object(pynvml, name, partial(self._answer, name)))
            return function(*args)


# A field's value: of the usual type, or a tuple of type, union member and value.
FieldAnswer = int | tuple[int, str, float] | Fails


def fields(answers: Mapping[Field, FieldAnswer]) -> Callable[..., Any]:
    """Answer nvmlDeviceGetFieldValues with *answers*, of which a test may change some."""

    def tell(handle: object, asked: Sequence[Field]) -> Any:
        entries = (pynvml.c_nvmlFieldValue_t * len(asked))()
        for entry, field in zip(entries, asked, strict=True):
            answer = answers.get(field, Fails())
            if isinstance(answer, Fails):
                entry.nvmlReturn = answer.code
            else:
                usual = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, "uiVal", answer
                entry.valueType, member, value = answer if isinstance(answer, tuple) else usual
                setattr(entry.value, member, value)
        return entries

    return tell


# QUICK soon gives up on what hangs. PATIENT, where nothing hangs, tolerates a busy machine.
QUICK = Timing(
    interval_seconds=0.1,
    stale_seconds=0.7,
    slow_seconds=0.7,
    retry_seconds=0.1,
    window_seconds=3.0,  # What is read a few times in a window is read each second.
    # What this machine's kernel reports does not concern the stub's GPUs.
    path_sysfs="/nowhere",
    path_kmsg="/nowhere",
)
PATIENT = replace(QUICK, stale_seconds=20.0, slow_seconds=20.0)

# A driver whose only source of PCIe throughput is the call that blocks.
ONLY_SAMPLED_PCIE = ("nvmlGpmQueryDeviceSupport * 3", "field_197 * 3", "field_198 * 3")


class Scenario:
    """The file that tells the stub what goes wrong; see nvmlstub.h."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.play()

    def play(self, *lines: str) -> None:
        """Play *lines* from the next call on, instead of what was played before."""
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self.path)  # The stub never reads half of it.


# Starts a supervisor whose worker loads the stub; see the fixture.
Supervise = Callable[..., NvmlSupervisor]


@contextmanager
def supervised(
    timing: Timing,
    environment: Mapping[str, str],
    restart_seconds: float = 0.1,
    silent_seconds: float = PATIENT.stale_seconds,
) -> Iterator[NvmlSupervisor]:
    """Run a supervisor for the length of the block.

    *timing* is its worker's. The worker is replaced after *silent_seconds* without a report, which
    may be longer: even a worker that soon gives up on what hangs reports late on a busy machine.
    """

    def launch(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        return WorkerProcess([*arguments, f"--stale-seconds={timing.stale_seconds}"], environment)

    its_timing = replace(timing, stale_seconds=silent_seconds)
    supervisor = NvmlSupervisor(its_timing, environment, restart_seconds, launch)
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


def wait_for_sample(
    supervisor: NvmlSupervisor, condition: Callable[[NodeSample], bool]
) -> NodeSample:
    """Return the first sample for which *condition* holds."""
    found: list[NodeSample] = []

    def is_found() -> bool:
        sample = supervisor.latest()
        if sample is not None and condition(sample):
            found.append(sample)
        return bool(found)

    wait_until(is_found)
    return found[0]


def gpus(supervisor: NvmlSupervisor) -> tuple[GpuSample, ...]:
    """Return the GPUs of the newest sample, none if there is no sample."""
    sample = supervisor.latest() or NodeSample(0.0)
    return sample.gpus


def ups(supervisor: NvmlSupervisor) -> list[bool]:
    """Return which GPUs answer, in the order of their index."""
    return [gpu.up for gpu in gpus(supervisor)]
