"""The outcome of an audit reaches an exporter, or one sentence says why not."""

from pathlib import Path
from typing import Any

import pytest

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.operator.levels import Orders
from exporter.ranks.audits import Audits
from exporter.ranks.store import RankStore
from rank_probe.audit.checks.findings import AuditFinding, AuditStatus, Outcome
from rank_probe.audit.names import AUDIT_PATH
from rank_probe.audit.push import NotPushed, push
from rank_probe.report.endpoint import Reply
from tests.exporter import asgi
from tests.rank_probe.answering import answering

OUTCOMES = [
    Outcome("mtu", (AuditFinding(AuditStatus.WARN, "differs", "mend it"),)),
    Outcome("numa", (AuditFinding(AuditStatus.OK, "fine"),)),
]


def test_exporter_takes_what_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command posts is what the ingest listener keeps."""
    audits = Audits()
    store = RankStore()
    app = IngestApp(store, IngestCounts(), Orders(store), 65536, audits=audits)
    posted: list[Any] = []

    def ask(endpoint: str, method: str, path: str, body: bytes, **options: Any) -> Reply:
        answer = asgi.ask(app, method, path, body, content_type="application/json")
        assert answer is not None
        posted.append(answer.content)
        return Reply(answer.status, "", b"")

    monkeypatch.setattr("rank_probe.audit.push.ask", ask)
    push(OUTCOMES, {"RANKSKEW_JOB_ID": "llama"})

    assert posted == [{"checks": 2}]
    assert [(one.job_id, one.statuses) for one in audits.latest()] == [
        ("llama", {"mtu": "warn", "numa": "ok"})
    ]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((404, {"error": "Not Found."}), "takes no audits: upgrade the exporter there"),
        ((403, {"error": "Not yours."}), "the exporter refuses the outcome (403): Not yours."),
        ((500, b"oops"), "the exporter refuses the outcome (500): it does not say why"),
    ],
)
def test_refusal_is_one_sentence(answer: tuple[int, Any], says: str) -> None:
    """It repeats what the exporter says."""
    with answering({AUDIT_PATH: answer}) as endpoint, pytest.raises(NotPushed) as said:
        push(OUTCOMES, {"RANKSKEW_EXPORTER": endpoint})

    assert says in str(said.value)


@pytest.mark.parametrize("endpoint", ["unix:{folder}/absent", "nowhere"])
def test_exporter_that_is_not_there_is_one_sentence(endpoint: str, tmp_path: Path) -> None:
    """It names the address."""
    address = endpoint.format(folder=tmp_path)
    with pytest.raises(NotPushed, match=f"^{address} does not take the outcome: "):
        push(OUTCOMES, {"RANKSKEW_EXPORTER": address})
