from collections.abc import Sequence
from typing import Any

import pynvml
import pytest

from exporter.nvml.readings.processes import Processes
from exporter.nvml.sample import GpuProcess
from tests.exporter.nvml.driver import Driver, Fails

TIMES_OUT = Fails(pynvml.NVML_ERROR_UNKNOWN)
List = Sequence[GpuProcess] | Fails


def lists(compute: List, graphics: List) -> Driver:
    return Driver(compute_processes=compute, graphics_processes=graphics)


@pytest.mark.parametrize(
    ("compute", "graphics", "told"),
    [
        (Fails(), Fails(), {}),
        (TIMES_OUT, TIMES_OUT, {}),  # An unknown list differs from an empty one.
        ([], [], {"processes": ()}),
        ([GpuProcess(8, 5, 2)], Fails(), {"processes": (GpuProcess(8, 5, 2),)}),
        # What draws and computes is one process, with the memory of the list that knows it.
        (
            [GpuProcess(7, None), GpuProcess(8, 5)],
            [GpuProcess(7, 3)],
            {"processes": (GpuProcess(7, 3), GpuProcess(8, 5))},
        ),
    ],
)
def test_both_lists_are_one(compute: List, graphics: List, told: dict[str, Any]) -> None:
    assert Processes().read(lists(compute, graphics).opened(), 100.0) == told


def test_lists_are_read_every_five_seconds() -> None:
    """Between two readings the last one holds; a process that ended is gone after the next."""
    driver, processes = lists([GpuProcess(8, 5)], []), Processes()
    ask = driver.opened()
    first = processes.read(ask, 100.0)
    driver.answers["compute_processes"] = []

    assert processes.read(ask, 104.9) == first
    assert processes.read(ask, 105.0) == {"processes": ()}
