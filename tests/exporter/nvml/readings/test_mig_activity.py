from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from exporter.nvml.calls import CallFailed, Calls
from exporter.nvml.readings.gpm import Memory
from exporter.nvml.readings.mig import SM, MigActivity
from exporter.nvml.readings.query import Ask


class FakeDriver(Calls):
    """Always half active; a function in *codes* fails with its error code."""

    def __init__(self, **codes: int) -> None:
        super().__init__(60.0, 60.0)
        self.codes = codes

    def __call__(
        self, gpu: int | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        name = function.__name__
        if name in self.codes:
            raise CallFailed(name, gpu, self.codes[name], "as the test wants")
        return Memory(object()) if name == "gpm_memory" else {SM: 50.0}


@pytest.mark.parametrize("function", ["gpm_support", "gpm_memory", "mig_sample", "gpm_metrics"])
def test_gpu_without_gpm_has_no_activity(function: str) -> None:
    """An older GPU, or a user without the right to it: no reading, whatever is missing."""
    driver = FakeDriver(**{function: pynvml.NVML_ERROR_NOT_SUPPORTED})
    ask, activity = Ask(0, object(), driver), MigActivity(15.0)

    assert [activity.read(ask, now, [9]) for now in (100.0, 101.0, 102.0)] == [{}, {}, {}]


def test_instance_is_compared_only_with_itself() -> None:
    """The first sample of a new instance, or after the GPU was opened anew, has none before it."""
    driver, activity = FakeDriver(), MigActivity(15.0)
    ask, again = Ask(0, object(), driver), Ask(0, object(), driver)

    assert activity.read(ask, 100.0, [9]) == {}
    assert activity.read(ask, 101.0, [9, 2]) == {9: 50.0}
    assert activity.read(ask, 102.0, [9, 2]) == {9: 50.0, 2: 50.0}
    assert activity.read(again, 103.0, [9, 2]) == {}
