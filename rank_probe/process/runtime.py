"""This rank's runtime: versions for the info series, and its GPU."""

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rank_probe.guest.imports import imported
from rank_probe.version import __version__

# Variables that change how fast, or over which path, a rank computes and communicates: those of
# NCCL and its transport plugins, torch's process group, CUDA and its libraries, allocator and
# threads.
COMPARED_PREFIXES: Final = (
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "UCX_",
    "FI_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "NVIDIA_TF32_OVERRIDE",
)
# Of these, the variables that differ between the ranks of a healthy job on purpose.
NOT_COMPARED: Final = frozenset(
    {
        # The GPU of this rank; device_count shows whether all ranks see equally many.
        "CUDA_VISIBLE_DEVICES",
        # Where this rank or node writes its logs, and how much one rank prints.
        "CUDA_CACHE_PATH",
        "CUDA_LOG_FILE",
        "CUDA_MPS_LOG_DIRECTORY",
        "CUDA_MPS_PIPE_DIRECTORY",
        "NCCL_DEBUG",
        "NCCL_DEBUG_FILE",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_GRAPH_DUMP_FILE",
        "NCCL_GRAPH_DUMP_FILE_RANK",
        "NCCL_INSPECTOR_DUMP_DIR",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_TOPO_DUMP_FILE_RANK",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        # Names of this host, and the cores of this rank.
        "GLOO_SOCKET_IFADDR",
        "NCCL_HOSTID",
        "OMP_PLACES",
    }
)
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
# By transfers a second and lane, in billions.
PCIE_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
DRIVER_VERSION: Final = Path("/proc/driver/nvidia/version")


def runtime_info() -> dict[str, str]:
    """Return what should not differ between ranks; torch's part only once it is imported."""
    info = {
        "python": platform.python_version(),
        "probe": __version__,
        "driver": driver_version(),
        "env_hash": environment_hash(os.environ),
    }
    torch = imported("torch")
    if torch is None:
        return info
    info["torch"] = str(torch.__version__)
    info["cuda"] = str(torch.version.cuda or "")
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        info["backend"] = str(torch.distributed.get_backend())
    # Not is_available(), which initialises the driver: the script could no longer choose its GPU or
    # fork its ranks.
    if torch.cuda.is_initialized():
        info["device_count"] = str(torch.cuda.device_count())
        if torch.distributed.is_nccl_available():
            info["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return info


def driver_version(path: Path = DRIVER_VERSION) -> str:
    """Return the version of the NVIDIA kernel driver, without NVML; empty if it is not shown."""
    try:
        line = path.read_text().partition("\n")[0]
    except OSError:  # No NVIDIA driver, or a container that hides it.
        return ""
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ..."
    found = re.search(r" (\d+\.\d+(?:\.\d+)?) ", line)
    return found[1] if found else ""


def environment_hash(environment: Mapping[str, str]) -> str:
    """Return 8 hex digits that differ if the compared variables differ, in name or value.

    The digest is only good for comparisons.
    """
    compared = sorted(
        f"{name}={value}"
        for name, value in environment.items()
        if name.startswith(COMPARED_PREFIXES) and name not in NOT_COMPARED
    )
    return hashlib.sha256("\0".join(compared).encode(errors="surrogateescape")).hexdigest()[:8]


def cuda_device(chosen: int | None = None) -> int | None:
    """Return the *chosen* CUDA device, else the calling thread's; None where CUDA is not in use.

    Never initialises CUDA: a rank that has not used it yet has no GPU.
    """
    torch = imported("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.current_device()) if chosen is None else chosen


def _properties(device: int | None) -> Any:
    torch = imported("torch")
    if device is None or torch is None:
        return None
    return torch.cuda.get_device_properties(device)


def gpu_uuid(device: int | None) -> str:
    """Return NVML's name for a CUDA device; empty without one, and before torch 2.5."""
    uuid = getattr(_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else ""


def gpu_model(device: int | None) -> str:
    """Return the vendor's name for a CUDA device; empty without one."""
    return str(getattr(_properties(device), "name", ""))


def pcie_link(device: int | None, devices: Path = PCI_DEVICES) -> str:
    """Return how a CUDA device is connected now, such as `generation 4 x16`.

    Empty if it is not known. An idle link may show a lower generation.
    """
    try:
        gpu = _properties(device)
        domain, bus, slot = gpu.pci_domain_id, gpu.pci_bus_id, gpu.pci_device_id
        link = devices / f"{domain:04x}:{bus:02x}:{slot:02x}.0"
        speed, width = ((link / f"current_link_{each}").read_text() for each in ("speed", "width"))
        return f"generation {PCIE_GENERATIONS[float(speed.split()[0])]} x{int(width)}"
    except (AttributeError, OSError, LookupError, RuntimeError, ValueError):
        return ""  # An older torch, or a container; or the GPU is lost.
