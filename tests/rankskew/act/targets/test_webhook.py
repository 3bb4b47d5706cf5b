"""Any other program is posted the line of the audit log."""

import json
from pathlib import Path
from typing import Any

import pytest

from rankskew.act.targets.webhook import WebhookTarget
from rankskew.client.access import Access
from rankskew.client.fetch import Trouble
from tests.rankskew.client.servers import Answer, Sent, serving, serving_all

LINE: dict[str, Any] = {"version": 1, "event": "hold", "name": "n1", "sentence": "slow GPU"}


def test_line_is_posted_as_it_is(tmp_path: Path) -> None:
    """To the whole URL, with what proves who we are."""
    got: list[Sent] = []
    (tmp_path / "http.yaml").write_text("authorization: {credentials: s3cret}")

    def answer(sent: Sent) -> Answer:
        got.append(sent)
        return 204, "text/plain", b""

    with serving_all(answer) as url:
        WebhookTarget(f"{url}/a?b=c", Access(tmp_path / "http.yaml")).hold(LINE)
    (sent,) = got

    assert (sent.method, sent.path, json.loads(sent.body)) == ("POST", "/a?b=c", LINE)
    assert sent.headers["Authorization"] == "Bearer s3cret"
    assert sent.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("status", [302, 400, 500])
def test_answer_that_is_no_yes_is_a_failure(status: int) -> None:
    """A redirect is none either: the receiver's address is what the operator wrote."""
    with (
        serving(lambda path, form: (status, "text/plain", b"http://127.0.0.1:1/")) as url,
        pytest.raises(Trouble, match=f"answers {status}"),
    ):
        WebhookTarget(url, Access()).free(LINE)
