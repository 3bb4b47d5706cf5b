"""The dry run of a push: what would become of it, without keeping or counting anything."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.openapi.constants import REF_TEMPLATE

from exporter.ingest.schema import RESULT_OF, RESULTS, Refused, parse
from exporter.listeners.peer import Peer
from exporter.operator.refusals import Refusal
from exporter.ranks.limits import Beginnings, NoRoom, sharer
from exporter.ranks.store import RankStore
from exporter.scrapers import Scraper, Scrapers
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH

SNAPSHOT: Final = {"schema": {"$ref": REF_TEMPLATE.format(model="Snapshot")}}
BODY: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/json": SNAPSHOT}}
}
TOO_OFTEN: Final = "This user has asked too often in the last minute; ask again in a minute"


@dataclass(frozen=True, slots=True)
class DryRunReply:
    """What the exporter of *version* would do with the snapshot.

    *result* is that of a push, *reason* the sentence of a refusal. *unknown_fields* of it would be
    ignored. *scraped* has the last clients of /metrics, the latest first. *no_join* is why the
    ranks of its job that push now cannot compare their steps, one of rank_probe.wire.no_join; empty
    if they can, or if the asker may not act for them.
    """

    version: str
    would_accept: bool
    result: str
    reason: str | None
    unknown_fields: int
    scraped: list[Scraper]
    no_join: str


# A refusal of the question itself has no answer: a web page, a missing token, too many questions.
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": DryRunReply | Refusal} for status in (400, 401, 403, 409, 413, 422, 429)
}


class DryRun:
    """Judges snapshots as *store* would. Call from the event loop only.

    It reveals no more than a push would, and no faster: an owner may ask about as many ranks in a
    minute as may start. Otherwise guessing the names of other users' jobs would be free.
    """

    def __init__(self, store: RankStore, scrapers: Scrapers) -> None:
        self._store = store
        self._scrapers = scrapers
        self._asked = Beginnings(store.limits.ranks)

    def judge(self, owner: Peer | None, body: bytes) -> DryRunReply:
        """Return what would become of a push; raises NoRoom if *owner* asks too often."""
        now = self._store.now()
        asker = sharer(owner)
        self._asked.check(asker, now)
        self._asked.add(asker, now)
        scraped = self._scrapers.latest()
        try:
            snapshot, unknown_fields = parse(body)
            is_news = self._store.would_put(snapshot, owner)
        except Refused as refusal:
            return DryRunReply(__version__, False, refusal.result, str(refusal), 0, scraped, "")
        except tuple(RESULT_OF) as refusal:
            result = RESULT_OF[type(refusal)]
            return DryRunReply(__version__, False, result, str(refusal), 0, scraped, "")
        result = "accepted" if is_news else "ignored"
        no_join = self._why_not_joined(snapshot.job_id, owner)
        return DryRunReply(__version__, True, result, None, unknown_fields, scraped, no_join)

    def _why_not_joined(self, job_id: str, asker: Peer | None) -> str:
        now = self._store.now()
        reasons = (
            held.snapshot.no_join
            for held in self._store.ranks()
            if held.snapshot.job_id == job_id
            and held.is_beating(now)
            and (held.owner == asker or (asker is not None and asker.may_act_for(held.owner)))
        )
        return next(filter(None, reasons), "")


def serve_dry_runs(app: FastAPI, dry_run: DryRun) -> None:
    """Add the dry run to *app*.

    It has a path of its own: an exporter that does not know a parameter of the push would ignore
    it, and keep the rank that only asked.
    """

    @app.post(DRY_RUN_PATH, responses=ANSWERS, openapi_extra=BODY)
    async def check(request: Request, response: Response) -> DryRunReply:
        """Say whether a push of this snapshot would be accepted, and who scrapes.

        The status is that of the push.
        """
        body = await request.body()
        try:
            answer = dry_run.judge(request.state.peer, body)
        except NoRoom as error:
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, TOO_OFTEN) from error
        response.status_code = RESULTS[answer.result]
        return answer
