from collections.abc import Callable, Sequence
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.processes import Processes
from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import GpuProcess


class FakeDriver(Calls):
    """Answers with *compute* and *graphics*, each a list or an error code."""

    def __init__(self, compute: Sequence[GpuProcess] | int, graphics: Sequence[GpuProcess] | int):
        super().__init__(60.0, 60.0)
        self.answers = {"compute_processes": compute, "graphics_processes": graphics}

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        answer = self.answers[function.__name__]
        if isinstance(answer, int):
            raise CallFailed(function.__name__, gpu, answer, "as the test wants")
        return list(answer)


def read(driver: FakeDriver) -> dict[str, Any]:
    return Processes().read(Ask(0, object(), driver), 100.0)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_gpu_that_cannot_list_them_has_no_reading(code: int) -> None:
    """An unknown process list differs from an empty one."""
    assert read(FakeDriver(code, code)) == {}
    assert read(FakeDriver([], [])) == {"processes": ()}


def test_process_on_both_lists_is_there_once() -> None:
    """What draws and computes is one process, with the memory of the list that knows it."""
    driver = FakeDriver([GpuProcess(7, None), GpuProcess(8, 5)], [GpuProcess(7, 3)])

    assert read(driver) == {"processes": (GpuProcess(7, 3), GpuProcess(8, 5))}


def test_one_list_is_enough() -> None:
    """A GPU that does not draw has no list of those that do."""
    driver = FakeDriver([GpuProcess(8, 5, 2)], pynvml.NVML_ERROR_NOT_SUPPORTED)

    assert read(driver) == {"processes": (GpuProcess(8, 5, 2),)}


def test_lists_are_read_every_five_seconds() -> None:
    """Between two readings the last one holds; a process that ended is gone after the next."""
    driver = FakeDriver([GpuProcess(8, 5)], [])
    ask, processes = Ask(0, object(), driver), Processes()
    first = processes.read(ask, 100.0)
    driver.answers["compute_processes"] = []

    assert processes.read(ask, 104.9) == first
    assert processes.read(ask, 105.0) == {"processes": ()}
