"""MIG: the parts that a GPU is divided into, each with its own memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import pynvml

from exporter.nvml.calls import UNSUPPORTED
from exporter.nvml.readings.mig_activity import MigActivity
from exporter.nvml.readings.query import Ask
from exporter.nvml.sample import MigDevice

T = TypeVar("T")

# The slot is empty; or the device was removed during the call, which can happen at any time.
ABSENT: Final = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT})

# An operator turns MIG on and off, while the GPU is idle.
MODE_SECONDS: Final = 5.0


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
