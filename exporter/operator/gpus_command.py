"""`rankskew gpus`: make this node's exporter release its GPUs, or forget removed ones."""

import http.client
import time
from collections.abc import Callable
from typing import Any, Final

from exporter.errors import StartError, UsageError
from exporter.operator.control_command import post
from exporter.operator.orders import GPUS_PATH, GpuOrder

# The worker ends within 4 s, unless it hangs in the driver.
LET_GO_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1
# A shorter wait needs no words.
QUIET_SECONDS: Final = 1.0


def release(
    seconds: float,
    endpoint: str,
    say: Callable[[str], None] = lambda sentence: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once no process of the exporter has the GPUs open; *say* so if that takes long.

    Raises UsageError or StartError.
    """
    try:
        asked = GpuOrder("release", seconds)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error
    began = time.monotonic()
    says = iter([f"waiting for the exporter to close the GPUs, for up to {LET_GO_SECONDS:.0f} s"])
    answer = _ask(asked, endpoint)
    while not answer.get("released"):
        waited = time.monotonic() - began
        if waited > LET_GO_SECONDS:
            raise StartError(
                "the process that reads the GPUs does not end, probably because a call hangs in "
                "the driver; rankskew_nvml_call_stuck_seconds names it, and only a reboot may help"
            )
        if waited > QUIET_SECONDS:
            for sentence in says:
                say(sentence)
        sleep(POLL_SECONDS)
        answer = _ask(GpuOrder("status"), endpoint)


def resume(endpoint: str) -> None:
    """Resume reading the GPUs; raises UsageError."""
    _ask(GpuOrder("resume"), endpoint)


def forget(endpoint: str) -> int:
    """Stop expecting the GPUs that are no longer there; return how many. Raises UsageError."""
    forgotten = _ask(GpuOrder("forget"), endpoint).get("forgotten")
    if not isinstance(forgotten, int):
        raise UsageError(f"{endpoint} does not answer as an exporter does")
    return forgotten


def _ask(order: GpuOrder, endpoint: str) -> dict[str, Any]:
    status, answer = post(GPUS_PATH, order.to_json(), endpoint)
    if status != http.client.OK:
        sentence = answer.get("error")
        raise UsageError(str(sentence or f"{endpoint} answers {status}: it takes no orders"))
    return answer
