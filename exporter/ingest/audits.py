"""Takes in the outcome of an audit, which `rank-probe audit --push` posts."""

from typing import Annotated, Final

from fastapi import FastAPI, Request
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from exporter.ingest.values import Label
from exporter.operator.refusals import REFUSALS
from exporter.ranks.audits import Audits
from rank_probe.audit.checks.findings import AuditStatus
from rank_probe.audit.names import AUDIT_PATH, CHECKS

STATUSES: Final = tuple(status.value for status in AuditStatus)
# Room for the checks of later releases, which are ignored.
MOST_CHECKS: Final = 64


@dataclass(config=ConfigDict(extra="ignore"), frozen=True)
class AuditBody:
    """The status of each check; those of a newer release are ignored."""

    job_id: Label
    checks: Annotated[dict[Label, Label], Field(max_length=MOST_CHECKS)]


@dataclass(frozen=True)
class Kept:
    """How many *checks* are shown."""

    checks: int


def serve_audits(app: FastAPI, audits: Audits) -> None:
    """Add the posting of audits to *app*."""

    @app.post(AUDIT_PATH, responses=REFUSALS)
    async def audit(body: AuditBody, request: Request) -> Kept:
        """Show the outcome of a job's audit, until the next one or for a day."""
        known = {
            check: status
            for check, status in body.checks.items()
            if check in CHECKS and status in STATUSES
        }
        audits.put(body.job_id, known, request.state.peer)
        return Kept(len(known))
