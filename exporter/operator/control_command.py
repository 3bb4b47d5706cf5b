"""`rankskew control`: order this node's exporter to change the level of a job's ranks."""

import http.client
import json
import os
from typing import Any, Final

from exporter.errors import UsageError, reason
from exporter.operator.orders import CONTROL_PATH, Order
from exporter.settings import Settings
from rank_probe.report.push import DEFAULT_ENDPOINT, Bearer, open_connection

# A person is waiting, so longer than the probe's timeout.
TIMEOUT_SECONDS: Final = 5.0


def operator_endpoint() -> str:
    """Return the endpoint where this node's exporter takes its operator's orders."""
    return f"unix:{Settings().operator_socket}"


def control_endpoint() -> str:
    """Return the endpoint that controls all ranks if this user may, else the one ranks push to."""
    if os.access(Settings().operator_socket, os.W_OK):
        return operator_endpoint()
    return os.environ.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT


def give_order(order: Order, endpoint: str) -> int:
    """Post *order* to *endpoint*; return how many ranks it applies to. Raises UsageError."""
    status, answer = post(CONTROL_PATH, order.to_json(), endpoint)
    if status != http.client.OK:
        sentence = answer.get("error")
        raise UsageError(str(sentence or f"{endpoint} answers {status}: it takes no orders"))
    ranks = answer.get("ranks")
    if not isinstance(ranks, int):
        raise UsageError(f"{endpoint} does not answer as an exporter does")
    return ranks


def post(path: str, body: bytes, endpoint: str) -> tuple[int, dict[str, Any]]:
    """Post *body* to the exporter; return status and answer, raises UsageError if none comes."""
    try:
        connection = open_connection(endpoint)
    except ValueError as error:
        raise UsageError(str(error)) from error
    connection.timeout = TIMEOUT_SECONDS
    try:
        connection.request("POST", path, body, _headers(endpoint))
        response = connection.getresponse()
        return response.status, _object(response.read())
    except (OSError, http.client.HTTPException) as error:
        why = reason(error) if isinstance(error, OSError) else "its answer is not HTTP"
        raise UsageError(
            f"no exporter answers at {endpoint}: {why}; start one, or set --endpoint"
        ) from error
    finally:
        connection.close()


def _headers(endpoint: str) -> dict[str, str]:
    bearer = Bearer(os.environ.get("RANKSKEW_TOKEN_FILE", ""), endpoint)
    bearer.read()
    return {"Content-Type": "application/json"} | bearer.headers


def _object(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
