"""What the operator may ask about the GPUs of this node: let go of them for a while, or forget."""

from dataclasses import dataclass
from typing import Protocol

from exporter.operator.orders import GpuOrder


class Nvml(Protocol):
    """The part of the supervisor that is asked."""

    @property
    def released(self) -> bool:
        """Whether no process of the exporter has the driver open, as release() asked."""
        ...

    def release(self, seconds: float) -> None:
        """Let go of the GPUs soon, and for *seconds*."""
        ...

    def resume(self) -> None:
        """Read the GPUs again soon."""
        ...


class Expected(Protocol):
    """The part of the remembered GPUs that is asked."""

    def forget(self) -> int:
        """Expect no longer what the driver does not list; return how many GPUs that are."""
        ...


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """Whether the GPUs are *released*, and how many of them were *forgotten* by this order."""

    released: bool
    forgotten: int


class GpuControl:
    """Does what the operator asks about the GPUs. Call from the event loop only.

    Nothing here waits: a release is done once the status says so.
    """

    def __init__(self, nvml: Nvml, expected: Expected) -> None:
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
