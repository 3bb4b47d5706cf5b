"""Whether the exporter is ready, and whether restarting its container would help; if not, why."""

import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import Response
from fastapi.responses import PlainTextResponse

from exporter.nvml.sample import NvmlSource

# Longer than a driver upgrade or a GPU reset takes.
GONE_SECONDS: Final = 600.0
# Why a check fails, None if it does not.
WhyNot = Callable[[], str | None]

FAILED: Final[dict[int | str, dict[str, Any]]] = {
    503: {"description": "It is not; the text says why", "content": {"text/plain": {}}}
}


class Ready:
    """Returns why the exporter is not ready, None if it is.

    Only the first readings are awaited: a collector that hangs later has a series for that, and an
    unready node would lose the series of all others. The NVML worker must always be up. A lost GPU,
    a missing driver and a release by the operator do not make the node unready, because their
    series are exposed. *nvml* is None if no collector needs it.
    """

    def __init__(self, has_first_readings: Callable[[], bool], nvml: NvmlSource | None) -> None:
        self._has_first_readings = has_first_readings
        self._nvml = nvml
        self._had_first_readings = False

    def __call__(self) -> str | None:
        self._had_first_readings = self._had_first_readings or self._has_first_readings()
        if not self._had_first_readings:
            return "The first readings are not available yet."
        if self._nvml is None or self._nvml.released:
            return None
        sample = self._nvml.latest()
        if sample is None:
            return "The NVML worker does not report: it is starting, or stuck and being replaced."
        if sample.gpus_visible is None:
            return "The driver has not listed the GPUs yet."
        return None


class GpusGone:
    """Returns why a restart would help: this process had GPUs but none for GONE_SECONDS; else None.

    A container can lose its access to every GPU while the node keeps them, for example when systemd
    is reloaded on the host, or its driver is upgraded: only a new container helps. If it does not
    help, there is no second restart, because the new process never had a GPU. *nvml* is None if no
    collector needs it. The time counts from the first call.
    """

    def __init__(
        self, nvml: NvmlSource | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._had_gpus = False
        self._gone_since: float | None = None

    def __call__(self) -> str | None:
        sample = None if self._nvml is None else self._nvml.latest()
        # A silent worker says nothing about the GPUs, and may hang where it cannot be killed.
        is_silent = sample is None or sample.gpus_visible is None
        if sample is not None and any(gpu.up for gpu in sample.gpus):
            self._had_gpus = True
        elif self._had_gpus and not is_silent:
            return self._gone()
        self._gone_since = None
        return None

    def _gone(self) -> str | None:
        if self._gone_since is None:
            self._gone_since = self._clock()
        seconds = self._clock() - self._gone_since
        if seconds < GONE_SECONDS:
            return None
        return (
            f"No GPU has answered for {seconds / 60:.0f} minutes, although this process has seen "
            "GPUs; a restarted container may see them again."
        )


def health_answer(what: str, why_not: str | None) -> Response:
    """Return the answer to whether the exporter is *what*: 200, or 503 with *why_not*."""
    if why_not is None:
        return PlainTextResponse(f"The exporter is {what}.\n")
    return PlainTextResponse(f"{why_not}\n", 503)
