"""XID errors by NVML's events, for who may not read the kernel's log."""

import time
from typing import Any, Final

import pynvml

from exporter.nvml.backoff import Backoff
from exporter.nvml.calls import PROCESS_OBSOLETE, UNSUPPORTED, CallFailed, Calls
from exporter.nvml.worker.xids import XidCounts

# Events wait in their set until they are fetched, so there is no need to wait for them.
WAIT_MILLISECONDS: Final = 1
# At once: a GPU that reports without end must not keep its thread for ever.
EVENTS: Final = 256
RETRY_CAP_SECONDS: Final = 300.0
UNSUPPORTED_FOR_SECONDS: Final = 3600.0


class XidEvents:
    """Counts the XID events of one GPU by its NVML index. One thread at a time uses it.

    The set of events is this GPU's alone: nothing in it can be another one's, and a GPU that hangs
    keeps up nobody. What happens while it is not registered is not counted.
    """

    def __init__(self, index: int, calls: Calls, retry_seconds: float) -> None:
        self._index = index
        self._calls = calls
        self._backoff = Backoff(retry_seconds, RETRY_CAP_SECONDS)
        self._register_at = 0.0
        self._set: Any | None = None
        # None as long as the GPU could never tell.
        self._counts: XidCounts | None = None

    def read(self) -> XidCounts | None:
        """Fetch the events that came since, and return the counts; None: it cannot tell.

        Raise CallFailed only when this process cannot go on.
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
        """Let go of the set and register later: a lost GPU may come back."""
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
