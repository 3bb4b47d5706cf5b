"""What this rank runs on: versions for the info series, and the GPU it computes on."""

import platform
import sys

from rank_probe.version import __version__


def runtime_info() -> dict[str, str]:
    """Return the versions that may differ between ranks; torch's only once it is imported."""
    info = {"python": platform.python_version(), "probe": __version__}
    torch = sys.modules.get("torch")
    if torch is None:
        return info
    info["torch"] = str(torch.__version__)
    info["cuda"] = str(torch.version.cuda or "")
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        info["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        info["backend"] = str(torch.distributed.get_backend())
    return info


def gpu_uuid() -> str:
    """Return NVML's name of the calling thread's CUDA device; empty without one.

    Never initialises CUDA: a rank that has not used it yet computes on no GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"GPU-{properties.uuid}"


def gpu_model() -> str:
    """Return what the vendor calls the calling thread's CUDA device; empty without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    return str(torch.cuda.get_device_name(torch.cuda.current_device()))


def rank_and_world_size() -> tuple[int, int] | None:
    """Return what torch.distributed says, for launchers that set no variables; None before init."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    if not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
