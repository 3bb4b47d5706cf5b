"""Whether a GPU has joined the NVLink fabric of its NVSwitches: the exporter and the audit ask."""

import ctypes
from typing import Any


def fabric_trouble(handle: object, pynvml: Any) -> str:
    """Return why it has not, empty if it has or there is no fabric; raises pynvml.NVMLError.

    The status means something once the registration is completed (nvml.h, nvmlGpuFabricInfo).
    """
    try:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    except pynvml.NVMLError_FunctionNotFound:  # A driver before 545.
        info = pynvml.c_nvmlGpuFabricInfo_t()
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS:
        return "in progress"
    is_completed = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    return f"error {info.status}" if is_completed and info.status else ""
