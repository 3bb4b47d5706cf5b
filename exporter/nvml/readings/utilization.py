"""How busy a GPU was over the last seconds."""

from typing import Any, Final

import pynvml

from exporter.nvml.readings.query import Ask
from exporter.nvml.readings.window import ReadingWindow

# The call reportedly takes 1.5 ms, and the driver keeps its samples for about 14 s.
SAMPLES_EVERY_SECONDS: Final = 5.0

# A busy percentage and its time: the driver's, in microseconds, with an unknown origin and
# resolution, so use it only to compare samples and to pass it back to the driver.
Sample = tuple[int, int]


def gpu_samples(handle: object, since: int) -> list[Sample]:
    """Return the samples that the driver took after its time *since*; 0: all that it still has."""
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since)
    except pynvml.NVMLError as error:
        # Nothing new. pynvml would call again with a count of 0, which is an invalid argument.
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            return []
        raise
    return [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples]


class Utilization:
    """The mean over the window, from the driver's own samples, one each 1/6 to 1 s, if it has them.

    Otherwise from one reading per second, which is the driver's own mean over up to a second.
    """

    def __init__(self, window_seconds: float) -> None:
        self._sampled = ReadingWindow(window_seconds)
        self._read = ReadingWindow(window_seconds)
        self._window_seconds = window_seconds
        self._every_seconds = min(SAMPLES_EVERY_SECONDS, window_seconds / 3)
        self._due = 0.0
        self._newest = 0
        self._newest_at = float("-inf")
        # Computed when samples arrive, not once a second.
        self._percent: float | None = None

    def read(self, ask: Ask, now: float) -> dict[str, Any]:
        """Return the percentage. A GPU that is split by MIG has none."""
        if now >= self._due:
            self._due = now + self._every_seconds
            self._take(ask, now)
        if now - self._newest_at <= self._window_seconds:
            return {"gpu_busy_percent": self._percent}
        rates = ask(pynvml.nvmlDeviceGetUtilizationRates)
        if rates is None:
            return {}
        self._read.add(now, rates.gpu)
        return {"gpu_busy_percent": self._read.mean()}

    def _take(self, ask: Ask, now: float) -> None:
        # After a long silence, start from the beginning: the driver's clock may have been set back.
        silent = now - self._newest_at > self._window_seconds
        samples = sorted(ask(gpu_samples, 0 if silent else self._newest) or [])
        if not samples or samples[-1][0] == self._newest:
            return
        self._newest, self._newest_at = samples[-1][0], now
        for taken_at, percent in samples:
            self._sampled.add(now - (self._newest - taken_at) / 1e6, percent)
        self._percent = self._sampled.mean()
