"""MIG: the parts that a GPU is divided into, each with its own memory, and how active they are."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import pynvml

from exporter.nvml.calls import UNSUPPORTED
from exporter.nvml.readings.gpm import REFRESH_SECONDS, Memory, gpm_memory, gpm_metrics, gpm_support
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import ReadingWindow
from exporter.nvml.sample import MigDevice

T = TypeVar("T")

# The slot is empty; or the device was removed during the call, which can happen at any time.
ABSENT: Final = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT})

# An operator turns MIG on and off, while the GPU is idle.
MODE_SECONDS: Final = 5.0

SM: Final = pynvml.NVML_GPM_METRIC_SM_UTIL


class MigDevices:
    """Lists the MIG devices of one GPU.

    NVML has no utilization for them; from Hopper on, GPM has the activity of their processors.
    """

    def __init__(self, window_seconds: float) -> None:
        self._activity = MigActivity(window_seconds)
        self._mode_every_seconds = min(MODE_SECONDS, window_seconds / 3)
        self._mode_due = 0.0
        self._is_on = False

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the devices; no field if MIG is off or unsupported."""
        if now >= self._mode_due:
            self._mode_due = now + self._mode_every_seconds
            mode = ask(pynvml.nvmlDeviceGetMigMode)
            if mode is not None:
                self._is_on = mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        if not self._is_on:
            return {}
        devices = ask(mig_devices)
        if devices is None:
            return {}
        active = self._activity.read(ask, now, {device.gpu_instance for device in devices})
        return {
            "mig_devices": tuple(
                replace(device, sm_active_percent=active.get(device.gpu_instance))
                for device in devices
            )
        }


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
        self._window = ReadingWindow(window_seconds)
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


def mig_devices(handle: object) -> tuple[MigDevice, ...]:
    """List the MIG devices: none right after MIG is enabled, and their slots have gaps."""
    places = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    devices = (_told(_device, handle, place) for place in places)
    return tuple(device for device in devices if device is not None)


def _device(handle: object, place: int) -> MigDevice:
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
    memory = _told(pynvml.nvmlDeviceGetMemoryInfo, mig, pynvml.nvmlMemory_v2)
    memory = memory or _told(pynvml.nvmlDeviceGetMemoryInfo, mig)
    return MigDevice(
        pynvml.nvmlDeviceGetUUID(mig),
        pynvml.nvmlDeviceGetGpuInstanceId(mig),
        pynvml.nvmlDeviceGetComputeInstanceId(mig),
        _profile(_told(pynvml.nvmlDeviceGetName, mig) or ""),
        None if memory is None else memory.total,
        None if memory is None else memory.used,
    )


def _profile(name: str) -> str:
    """Return the last words of a MIG device's *name*, as in "NVIDIA H100 80GB HBM3 MIG 1g.10gb"."""
    return name.rpartition(" MIG ")[2]


def _told(function: Callable[..., T], *args: object) -> T | None:
    """Return the result of *function*; None if this device is gone or has no value."""
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if error.value in ABSENT | UNSUPPORTED:
            return None
        raise
