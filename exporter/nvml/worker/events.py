"""XID errors from NVML's events, if the kernel's log is not readable."""

import time
from typing import Any, Final

import pynvml

from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls
from exporter.nvml.worker.xids import XidCounts

# Events stay in their set until they are fetched, so there is no need to wait for them.
WAIT_MILLISECONDS: Final = 1
# Per call: a GPU that reports without end must not occupy its thread forever.
EVENTS: Final = 256
RETRY_CAP_SECONDS: Final = 300.0
UNSUPPORTED_FOR_SECONDS: Final = 3600.0


class XidEvents:
    """Counts the XID events of one GPU by its NVML index. One thread at a time uses it.

    Each GPU has its own event set, so it never holds another GPU's events, and a GPU that hangs
    does not delay the others. What happens while the GPU is not registered is not counted.
    """

    def __init__(self, index: int, calls: Calls, retry_seconds: float) -> None:
        self._index = index
        self._calls = calls
        self._backoff = Backoff(retry_seconds, RETRY_CAP_SECONDS)
        self._register_at = 0.0
        self._set: Any | None = None
        # None until the GPU was registered once.
        self._counts: XidCounts | None = None

    def read(self) -> XidCounts | None:
        """Fetch the new events and return the counts; None: not available.

        Raise CallFailed only if this process cannot continue.
        """
        try:
            if self._set is not None or self._register():
                self._fetch()
        except CallFailed as failure:
            if failure.code in PROCESS_OBSOLETE:
                raise
            self._give_up(failure)
        return self._counts

    def _register(self) -> bool:
        if time.monotonic() < self._register_at:
            return False
        handle = self._call(pynvml.nvmlDeviceGetHandleByIndex, self._index)
        supported = self._call(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
        if not supported & pynvml.nvmlEventTypeXidCriticalError:
            self._register_at = time.monotonic() + UNSUPPORTED_FOR_SECONDS
            return False
        self._set = self._call(pynvml.nvmlEventSetCreate)
        self._call(
            pynvml.nvmlDeviceRegisterEvents,
            handle,
            pynvml.nvmlEventTypeXidCriticalError,
            self._set,
        )
        self._counts = self._counts or XidCounts()
        return True

    def _fetch(self) -> None:
        assert self._counts is not None
        for _ in range(EVENTS):
            try:
                event = self._call(pynvml.nvmlEventSetWait_v2, self._set, WAIT_MILLISECONDS)
            except CallFailed as failure:
                if failure.code != pynvml.NVML_ERROR_TIMEOUT:
                    raise
                self._backoff.reset()
                return
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._counts.add(event.eventData)

    def _give_up(self, failure: CallFailed) -> None:
        """Release the set and register later: a lost GPU may come back."""
        unsupported = failure.code in UNSUPPORTED
        seconds = UNSUPPORTED_FOR_SECONDS if unsupported else self._backoff.next_seconds()
        self._register_at = time.monotonic() + seconds
        forgotten, self._set = self._set, None
        if forgotten is not None:
            try:
                self._call(pynvml.nvmlEventSetFree, forgotten)
            except CallFailed as also:
                if also.code in PROCESS_OBSOLETE:
                    raise

    def _call(self, function: Any, *args: Any) -> Any:
        return self._calls(self._index, function, *args)
