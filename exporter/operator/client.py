"""Gives orders to this node's exporter, for `rankskew control`."""

import http.client
import os
import time
from collections.abc import Callable
from typing import Any, Final

from exporter.errors import StartError, UsageError, reason
from exporter.operator.orders import (
    CONTROL_PATH,
    GPUS_PATH,
    GpuOrder,
    Order,
)
from exporter.settings import Settings
from rank_probe.report.endpoint import DEFAULT_ENDPOINT, NoEndpoint, ask

# A person is waiting, so longer than the probe's timeout.
TIMEOUT_SECONDS: Final = 5.0
# The worker ends within 4 s, unless it hangs in the driver.
LET_GO_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1
# A shorter wait needs no words.
QUIET_SECONDS: Final = 1.0


def operator_endpoint() -> str:
    """Return the endpoint where this node's exporter takes its operator's orders."""
    return f"unix:{Settings().operator_socket}"


def control_endpoint() -> str:
    """Return the endpoint that controls all ranks if this user may, else the one ranks push to."""
    if os.access(Settings().operator_socket, os.W_OK):
        return operator_endpoint()
    return os.environ.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT


def control(order: Order, endpoint: str) -> int:
    """Give *order*; return how many ranks it applies to. Raises UsageError."""
    ranks = _ask(CONTROL_PATH, order.to_json(), endpoint).get("ranks")
    if not isinstance(ranks, int):
        raise UsageError(f"{endpoint} does not answer as an exporter does")
    return ranks


def release(seconds: float, endpoint: str, say: Callable[[str], None]) -> None:
    """Return once no process of the exporter has the GPUs open; *say* so if that takes long.

    Raises UsageError or StartError.
    """
    try:
        order = GpuOrder("release", seconds)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error
    began = time.monotonic()
    has_said = False
    while not _ask(GPUS_PATH, order.to_json(), endpoint).get("released"):
        order = GpuOrder("status")
        waited = time.monotonic() - began
        if waited > LET_GO_SECONDS:
            raise StartError(
                "the process that reads the GPUs does not end, probably because a call hangs in "
                "the driver; rankskew_nvml_call_stuck_seconds names it, and only a reboot may help"
            )
        if waited > QUIET_SECONDS and not has_said:
            say(f"waiting for the exporter to close the GPUs, for up to {LET_GO_SECONDS:.0f} s")
            has_said = True
        time.sleep(POLL_SECONDS)


def resume(endpoint: str) -> None:
    """Resume reading the GPUs; raises UsageError."""
    _ask(GPUS_PATH, GpuOrder("resume").to_json(), endpoint)


def post(path: str, body: bytes, endpoint: str) -> tuple[int, dict[str, Any]]:
    """Post *body* to the exporter; return status and answer, raises UsageError if none comes."""
    try:
        reply = ask(
            endpoint,
            "POST",
            path,
            body,
            token_file=os.environ.get("RANKSKEW_TOKEN_FILE", ""),
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except (OSError, http.client.HTTPException) as error:
        why = reason(error) if isinstance(error, OSError) else "its answer is not HTTP"
        raise UsageError(
            f"no exporter answers at {endpoint}: {why}; start one, or set --exporter"
        ) from error
    except NoEndpoint as error:
        raise UsageError(str(error)) from error
    return reply.status, reply.json_object()


def _ask(path: str, body: bytes, endpoint: str) -> dict[str, Any]:
    """Return the answer to an order; raises UsageError if it is refused."""
    status, answer = post(path, body, endpoint)
    if status != http.client.OK:
        sentence = answer.get("error")
        raise UsageError(str(sentence or f"{endpoint} answers {status}: it takes no orders"))
    return answer
