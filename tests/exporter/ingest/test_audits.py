"""The ingest listener takes audits, and says what is wrong with those it refuses."""

import json
from typing import Any

import pytest

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.listeners.peer import Peer
from exporter.operator.levels import Orders
from exporter.ranks.audits import Audits
from exporter.ranks.store import RankStore
from rank_probe.audit.names import AUDIT_PATH
from tests.exporter.asgi import Answer, ask

USER, OTHER = Peer(1000), Peer(1001)


def post(audits: Audits, content: Any, peer: Peer | None = USER) -> Answer:
    """Post *content* to a listener that keeps *audits*."""
    store = RankStore()
    app = IngestApp(store, IngestCounts(), Orders(store), 10_000, audits=audits)
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = ask(app, "POST", AUDIT_PATH, body, peer=peer, content_type="application/json")
    assert answer is not None
    return answer


def test_audit_is_kept_for_its_owner() -> None:
    """Of each check its status, and who posted it."""
    audits = Audits()
    answer = post(audits, {"job_id": "a", "checks": {"mtu": "warn", "numa": "ok"}})

    assert (answer.status, answer.content) == (200, {"checks": 2})
    assert audits.latest()[0].owner == USER
    assert post(audits, {"job_id": "a", "checks": {}}, OTHER).status == 403


def test_what_a_newer_release_adds_is_ignored() -> None:
    """Checks, statuses and fields that this exporter does not know become no labels."""
    audits = Audits()
    body = {"job_id": "a", "later": 1, "checks": {"mtu": "ok", "new": "ok", "numa": "maybe"}}

    assert post(audits, body).content == {"checks": 1}
    assert audits.latest()[0].statuses == {"mtu": "ok"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "The body is not JSON; send one JSON object."),
        ({"checks": {}}, "Field job_id is missing; "),
        ({"job_id": "", "checks": {}}, "Field job_id is wrong: "),
        ({"job_id": "a", "checks": {str(i): "ok" for i in range(65)}}, "Field checks is wrong: "),
    ],
)
def test_refusal_says_what_is_wrong(content: Any, says: str) -> None:
    """One sentence, and nothing is kept."""
    audits = Audits()
    answer = post(audits, content)

    assert answer.status == 422
    assert answer.content["error"].startswith(says)
    assert audits.latest() == []
