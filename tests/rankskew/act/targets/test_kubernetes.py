"""Kubernetes is told by a condition, an event and a taint; others' are left alone."""

import json
import ssl
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from exporter.errors import UsageError
from rankskew.act.targets import kubernetes
from rankskew.act.targets.kubernetes import CONDITION, Kubernetes, ServiceAccount
from rankskew.client.access import ANYONE
from rankskew.client.fetch import Trouble
from tests.exporter.certificates import make_certificate
from tests.rankskew.client.servers import Answer, Sent, json_answer, serving_all

LINE = {"event": "hold", "name": "n1", "time": 1_795_420_000.0, "sentence": "slow GPU (clock)"}
READY = {"type": "Ready", "status": "True"}
THEIRS = {"key": "theirs", "effect": "NoExecute"}


class Api:
    """An API server with the node n1, which merges what is patched as Kubernetes does."""

    def __init__(self) -> None:
        self.taints: list[Any] = [THEIRS]
        self.conditions: dict[str, Any] = {"Ready": READY}
        self.events: list[Any] = []
        self.version = 7
        self.changes_meanwhile = False

    def get(self, path: str) -> Answer:
        if path != "/api/v1/nodes/n1":
            return json_answer(
                {"kind": "Status", "reason": "NotFound", "message": "not found"}, 404
            )
        about = {"name": "n1", "uid": "u-1", "resourceVersion": str(self.version)}
        status = {"conditions": list(self.conditions.values())}
        self.version += self.changes_meanwhile
        spec = {"taints": self.taints}
        return json_answer({"kind": "Node", "metadata": about, "spec": spec, "status": status})

    def answer(self, sent: Sent) -> Answer:
        if sent.method == "GET":
            return self.get(sent.path)
        kind, body = sent.headers["Content-Type"].partition("/")[2], json.loads(sent.body)
        what = f"{sent.method} {sent.path} {kind}"
        if what == "PATCH /api/v1/nodes/n1/status strategic-merge-patch+json":
            for each in body["status"]["conditions"]:
                self.conditions[each["type"]] = each
        elif what == "PATCH /api/v1/nodes/n1 merge-patch+json":
            if body["metadata"]["resourceVersion"] != str(self.version):
                return json_answer({"kind": "Status", "message": "has been modified"}, 409)
            self.taints = body["spec"]["taints"]
        elif what == "POST /api/v1/namespaces/default/events json":
            self.events.append(body)
        else:
            return json_answer({"kind": "Status", "message": f"cannot {what}"}, 422)
        return json_answer({"kind": "Node"})

    def serve(self) -> AbstractContextManager[str]:
        return serving_all(self.answer)


def test_condition_event_and_taint_come_and_go() -> None:
    """With the reason in each; conditions and taints of others stay."""
    api = Api()
    with api.serve() as url:
        target = Kubernetes(url, ANYONE, taints=True)
        assert not target.holds("n1")
        target.hold(LINE)
        target.hold(LINE)
        assert target.holds("n1")
        held = api.conditions[CONDITION], list(api.taints)
        target.free(LINE | {"sentence": "judged for 1h"})
        assert not target.holds("n1")

    assert held[0]["message"] == "rankskew: slow GPU (clock)"
    assert held[0]["lastTransitionTime"] == "2026-11-23T07:46:40Z"
    ours = {"key": "rankskew/degraded", "value": "true", "effect": "NoSchedule"}
    assert held[1] == [THEIRS, ours]
    assert api.taints == [THEIRS]
    assert api.conditions["Ready"] == READY
    assert api.conditions[CONDITION]["status"] == "False"
    assert [(each["type"], each["reason"]) for each in api.events[1:]] == [
        ("Warning", CONDITION),
        ("Normal", f"{CONDITION}Over"),
    ]
    about = api.events[0]["involvedObject"]
    assert about == {"kind": "Node", "apiVersion": "v1", "name": "n1", "uid": "u-1"}


def test_without_the_flag_no_taint_is_touched() -> None:
    api = Api()
    with api.serve() as url:
        Kubernetes(url, ANYONE, taints=False).hold(LINE)

    assert api.taints == [THEIRS]


def test_node_that_somebody_changes_meanwhile_is_not_overwritten() -> None:
    """The server refuses what was made of an older version, in its own words."""
    api = Api()
    api.changes_meanwhile = True
    with api.serve() as url, pytest.raises(Trouble, match=r"answers 409 .*: has been modified"):
        Kubernetes(url, ANYONE, taints=True).hold(LINE)


def test_node_that_is_gone_is_not_held() -> None:
    with Api().serve() as url:
        target = Kubernetes(url, ANYONE, taints=True)
        assert not target.holds("n9")
        with pytest.raises(Trouble, match=r"answers 422 .*: cannot PATCH /api/v1/nodes/n9/status"):
            target.hold(LINE | {"name": "n9"})


def test_service_account_is_read_again_once_its_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet renews the token; the server's certificate is checked."""
    monkeypatch.setattr(kubernetes, "ACCOUNT", tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*token: No such file or directory"):
        ServiceAccount().read()
    certificate, key = make_certificate(tmp_path, "ca")
    seen: list[str] = []

    def answer(sent: Sent) -> Answer:
        seen.append(sent.headers["Authorization"])
        is_valid = seen[-1].endswith((tmp_path / "token").read_text())
        return Api().get(sent.path) if is_valid else json_answer({}, 401)

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with serving_all(answer, tls) as url:
        target = Kubernetes(url, ServiceAccount(), taints=False)
        for token in ("first", "second"):
            (tmp_path / "token").write_text(token)
            assert not target.holds("n1")

    assert seen == ["Bearer first", "Bearer first", "Bearer second"]
