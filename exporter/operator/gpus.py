"""What the operator may order about this node's GPUs: release, resume, forget."""

from dataclasses import dataclass
from typing import Protocol

from exporter.operator.orders import GpuOrder


class GpuDriver(Protocol):
    """The part of the supervisor that orders use."""

    @property
    def released(self) -> bool:
        """Whether no process of the exporter has the driver open, after release()."""
        ...

    def release(self, seconds: float) -> None:
        """Close the driver soon, for *seconds*."""
        ...

    def resume(self) -> None:
        """Read the GPUs again soon."""
        ...


class Expected(Protocol):
    """The part of the expected GPUs that orders use."""

    def forget(self) -> int:
        """Stop expecting GPUs that the driver does not list; return how many these are."""
        ...


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """Whether the GPUs are *released*, and how many this order has *forgotten*."""

    released: bool
    forgotten: int


class GpuControl:
    """Carries out the operator's orders about the GPUs. Call from the event loop only.

    Nothing here waits: a release is done once the status shows it.
    """

    def __init__(self, nvml: GpuDriver, expected: Expected) -> None:
        self._nvml = nvml
        self._expected = expected

    def do(self, order: GpuOrder) -> GpuAnswer:
        """Do what *order* asks for."""
        forgotten = 0
        if order.action == "release":
            self._nvml.release(order.seconds)
        elif order.action == "resume":
            self._nvml.resume()
        elif order.action == "forget":
            forgotten = self._expected.forget()
        return GpuAnswer(self._nvml.released, forgotten)
