"""How active the SMs of each GPU instance are, from GPM, which supports MIG from Hopper on."""

import math
from collections.abc import Iterable
from typing import Final

import pynvml

from exporter.nvml.readings.gpm import REFRESH_SECONDS, Memory, gpm_memory, gpm_metrics, gpm_support
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import Window

SM: Final = pynvml.NVML_GPM_METRIC_SM_UTIL


class MigActivity:
    """Samples the GPU instances of one GPU, as Gpm does for an undivided GPU."""

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._instances: dict[int, _Instance] = {}
        # For two samples of each instance number ever seen; there are at most 15.
        self._memory: dict[int, list[Memory]] = {}
        self._opening: Ask | None = None

    def read(self, ask: Ask, now: float, instances: Iterable[int]) -> dict[int, float]:
        """Return the mean over the window in percent, for those of *instances* that have one."""
        if ask is not self._opening:
            self._opening, self._instances = ask, {}
        if ask(gpm_support) is None:
            return {}
        self._instances = {
            number: self._instances.get(number) or _Instance(number, self._window_seconds)
            for number in instances
        }
        means = {
            number: instance.read(ask, now, self._memory.setdefault(number, []))
            for number, instance in self._instances.items()
        }
        return {number: mean for number, mean in means.items() if mean is not None}


class _Instance:
    def __init__(self, number: int, window_seconds: float) -> None:
        self._number = number
        self._window = Window(window_seconds)
        self._taken_at = -math.inf

    def read(self, ask: Ask, now: float, memory: list[Memory]) -> float | None:
        """Take a sample and return the mean over the window; *memory* belongs to this instance."""
        if now - self._taken_at <= REFRESH_SECONDS:
            return self._window.mean()
        while len(memory) < 2:
            allocated = ask.raw(gpm_memory)
            if allocated is None:
                return None
            memory.append(allocated)
        later, earlier = memory
        if ask(mig_sample, self._number, later) is None:
            return None
        is_first = self._taken_at == -math.inf
        memory.reverse()
        self._taken_at = now
        active = None if is_first else (ask.raw(gpm_metrics, earlier, later) or {}).get(SM)
        if active is None:
            return None
        self._window.add(now, active)
        return self._window.mean()


def mig_sample(handle: object, instance: int, memory: Memory) -> Memory:
    """Take a sample of the counters of a GPU instance."""
    pynvml.nvmlGpmMigSampleGet(handle, instance, memory.pointer)
    return memory
