"""`rankskew gpus`: make this node's exporter release its GPUs, or forget removed ones."""

import http.client
import time
from collections.abc import Callable
from typing import Any, Final

from exporter import durations
from exporter.errors import StartError, UsageError
from exporter.operator.control_command import post
from exporter.operator.orders import GPUS_PATH, GpuOrder

# The worker ends within 4 s, unless it hangs in the driver.
LET_GO_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1


def release(seconds: float, endpoint: str, sleep: Callable[[float], None] = time.sleep) -> str:
    """Return once no process of the exporter has the GPUs open; raises UsageError, StartError."""
    try:
        asked = GpuOrder("release", seconds)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error
    give_up = time.monotonic() + LET_GO_SECONDS
    answer = _ask(asked, endpoint)
    while not answer.get("released"):
        if time.monotonic() > give_up:
            raise StartError(
                "the process that reads the GPUs does not end, probably because a call hangs in "
                "the driver; rankskew_nvml_call_stuck_seconds names it, and only a reboot may help"
            )
        sleep(POLL_SECONDS)
        answer = _ask(GpuOrder("status"), endpoint)
    return (
        f"the exporter has closed the GPUs for {durations.show(seconds)}: reset or reconfigure "
        "them, then run rankskew gpus resume"
    )


def resume(endpoint: str) -> str:
    """Resume reading the GPUs; raises UsageError."""
    _ask(GpuOrder("resume"), endpoint)
    return "the exporter reads the GPUs again within seconds"


def forget(endpoint: str) -> str:
    """Stop expecting the GPUs that are no longer there; raises UsageError."""
    forgotten = _ask(GpuOrder("forget"), endpoint).get("forgotten")
    gpus = "1 GPU is" if forgotten == 1 else f"{forgotten} GPUs are"
    return f"{gpus} no longer expected"


def _ask(order: GpuOrder, endpoint: str) -> dict[str, Any]:
    status, answer = post(GPUS_PATH, order.to_json(), endpoint)
    if status != http.client.OK:
        sentence = answer.get("error")
        raise UsageError(str(sentence or f"{endpoint} answers {status}: it takes no orders"))
    return answer
