"""Posts the outcome of an audit to the exporter of this node."""

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Final

from rank_probe.audit.checks.findings import Outcome
from rank_probe.audit.names import AUDIT_PATH
from rank_probe.process import identity
from rank_probe.report.push import DEFAULT_ENDPOINT, Bearer, open_connection

TIMEOUT_SECONDS: Final = 2.0
LARGEST_ANSWER_BYTES: Final = 65536


class NotPushed(Exception):
    """The exporter did not take the outcome; one sentence."""


def push(outcomes: Sequence[Outcome], environment: Mapping[str, str]) -> None:
    """Post *outcomes* under the name of the job; raises NotPushed."""
    known = identity.with_namespace(environment)
    endpoint = known.get("RANKSKEW_EXPORTER") or DEFAULT_ENDPOINT
    body = {
        "job_id": identity.job_id(known),
        "checks": {one.check: one.status.value for one in outcomes},
    }
    bearer = Bearer(known.get("RANKSKEW_TOKEN_FILE", ""), endpoint)
    bearer.read()
    try:
        status, answer = _post(endpoint, json.dumps(body).encode(), bearer.headers)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotPushed(f"{endpoint} does not take the outcome: {error}") from error
    if status == http.client.NOT_FOUND:
        raise NotPushed(f"what listens at {endpoint} takes no audits: upgrade the exporter there")
    if status != http.client.OK:
        raise NotPushed(f"the exporter refuses the outcome ({status}): {_said(answer)}")


def _post(endpoint: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    connection = open_connection(endpoint)
    connection.timeout = TIMEOUT_SECONDS
    try:
        connection.request(
            "POST", AUDIT_PATH, body, {"Content-Type": "application/json", **headers}
        )
        response = connection.getresponse()
        return response.status, response.read(LARGEST_ANSWER_BYTES)
    finally:
        connection.close()


def _said(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, TypeError, KeyError):
        return "it does not say why"
