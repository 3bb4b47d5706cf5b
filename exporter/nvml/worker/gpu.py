"""One GPU: opens it, reads it, and distinguishes "not supported", "not now" and "lost"."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pynvml

from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls
from exporter.nvml.readings.one_call import READINGS, Reading
from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.several_calls import SubjectReader
from exporter.nvml.sample import GpuSample

LOST_CAP_SECONDS: Final = 300.0


def pci_bus_id(handle: object) -> str:
    """Read the GPU's PCI bus id."""
    return str(pynvml.nvmlDeviceGetPciInfo(handle).busId)


class Gpu:
    """One GPU by its NVML index.

    read() and read_slow() may run at the same time, each in at most one thread; both may hang in
    the driver forever.
    """

    def __init__(
        self,
        index: int,
        calls: Calls,
        retry_seconds: float,
        quick: Sequence[SubjectReader] = (),
        slow: Sequence[SubjectReader] = (),
    ) -> None:
        self.index = index
        self._calls = calls
        self._backoff = Backoff(retry_seconds, LOST_CAP_SECONDS)
        self._quick = quick
        self._slow = slow
        self._ask: Ask | None = None
        # Still reported when the GPU is lost.
        self._down = GpuSample(index, up=False)
        self._open_again_at = 0.0
        # The last values of READINGS and when each is due next, by its fields.
        self._kept: dict[str, Any] = {}
        self._due: dict[tuple[str, ...], float] = {}

    def down(self) -> GpuSample:
        """Return the sample of a GPU that does not answer."""
        return self._down

    def read(self) -> GpuSample:
        """Read everything that answers quickly; raise CallFailed if the driver was replaced."""
        if time.monotonic() < self._open_again_at:
            return self.down()
        try:
            ask = self._ask or self._open()
            ask.forget_answers()
            values = self._table(ask, time.monotonic()) | _read_all(self._quick, ask)
            if ask.failure is not None and not ask.has_answered:
                raise ask.failure  # A GPU that returns only errors is not up.
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            return self._lose()
        self._backoff.reset()
        return replace(self._down, up=True, **values)

    def read_slow(self) -> dict[str, Any]:
        """Read what takes longer; return fields of GpuSample with their values."""
        ask = self._ask  # Read once: read() may lose the GPU meanwhile.
        if ask is None:
            return {}
        try:
            return _read_all(self._slow, ask)
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            return {}  # Lost: read() finds that out too, and reports it.

    def _open(self) -> Ask:
        handle = self._calls(self.index, pynvml.nvmlDeviceGetHandleByIndex, self.index)
        self._down = GpuSample(
            self.index,
            up=False,
            uuid=self._text(pynvml.nvmlDeviceGetUUID, handle),
            name=self._text(pynvml.nvmlDeviceGetName, handle),
            pci_bus_id=self._text(pci_bus_id, handle),
        )
        self._ask = Ask(self.index, handle, self._calls)
        return self._ask

    def _text(self, function: Callable[[Any], str], handle: object) -> str:
        try:
            return self._calls(self.index, function, handle)
        except CallFailed as failure:
            if failure.code in UNSUPPORTED:
                return ""
            raise

    def _lose(self) -> GpuSample:
        self._ask = None
        self._kept.clear()
        self._due.clear()
        self._open_again_at = time.monotonic() + self._backoff.next_seconds()
        return self.down()

    def _table(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the fields of READINGS that could be read when they were last due."""
        for reading in READINGS:
            if now >= self._due.get(reading.fields, 0.0) and self._take(ask, reading):
                self._due[reading.fields] = now + reading.every_seconds
        return dict(self._kept)

    def _take(self, ask: Ask, reading: Reading) -> bool:
        """Store the values of *reading* or of its older call; return False if it must be retried.

        Unsupported readings are retried too: *ask* then answers from its cache.
        """
        value = ask(reading.function, *reading.arguments)
        if value is not None:
            self._kept.update(zip(reading.fields, reading.unpack(value), strict=True))
            return True
        if reading.older is not None and not ask.supports(reading.function, *reading.arguments):
            return self._take(ask, reading.older)
        for name in reading.fields:
            self._kept.pop(name, None)
        return False


def _read_all(some_parts: Sequence[SubjectReader], ask: Ask) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in some_parts:
        values |= part.read(ask, time.monotonic())
    return values
