"""Posts the outcome of an audit to the exporter of this node."""

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Final

from rank_probe.audit.checks.findings import Outcome
from rank_probe.audit.names import AUDIT_PATH
from rank_probe.process import identity
from rank_probe.report.endpoint import DEFAULT_ENDPOINT, Reply, ask

TIMEOUT_SECONDS: Final = 2.0


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
    try:
        reply = ask(
            endpoint,
            "POST",
            AUDIT_PATH,
            json.dumps(body).encode(),
            token_file=known.get("RANKSKEW_TOKEN_FILE", ""),
            timeout_seconds=TIMEOUT_SECONDS,
        )
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotPushed(f"{endpoint} does not take the outcome: {error}") from error
    if reply.status == http.client.NOT_FOUND:
        raise NotPushed(f"what listens at {endpoint} takes no audits: upgrade the exporter there")
    if reply.status != http.client.OK:
        raise NotPushed(f"the exporter refuses the outcome ({reply.status}): {_said(reply)}")


def _said(reply: Reply) -> str:
    return str(reply.json_object().get("error") or "it does not say why")
