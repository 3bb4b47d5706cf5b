"""Kubernetes: a condition of the node, an event, and a taint if that is asked for."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exporter.errors import text_of
from rankskew.act.targets.target import Line, reason
from rankskew.client.access import Access
from rankskew.client.fetch import Trouble, base_url, get_json, send_json
from rankskew.client.fields import mapping, objects, text
from rankskew.client.headers import AUTHORIZATION, HttpConfig, one_line
from rankskew.report.times import iso

CONDITION: Final = "RankskewDegraded"
TAINT: Final = "rankskew/degraded"
# The API server, and what a pod is given to reach it.
OF_THIS_POD: Final = "https://kubernetes.default.svc"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE: Final = "application/merge-patch+json"
# Adds to the conditions of others, by their type, instead of replacing them.
STRATEGIC: Final = "application/strategic-merge-patch+json"
# Of nodes, which are in no namespace.
EVENTS: Final = "/api/v1/namespaces/default/events"


class ServiceAccount(Access):
    """What a pod is given: a token, which the kubelet renews, and the cluster's authority."""

    def read(self) -> HttpConfig:
        """Return what the files in ACCOUNT say now; raises UsageError."""
        token = one_line(text_of(ACCOUNT / "token").strip(), "the token of the service account")
        authority = ssl.create_default_context(cadata=text_of(ACCOUNT / "ca.crt"))
        return HttpConfig([(AUTHORIZATION, f"Bearer {token}")], authority)


class Kubernetes:
    """The API server at *url*, reached with *access*; nodes are tainted if *taints*."""

    name = "kubernetes"

    def __init__(self, url: str, access: Access, taints: bool) -> None:
        self._url, self._access, self._taints = base_url(url), access, taints

    def pools(self) -> Mapping[str, frozenset[str]]:
        """Return none: Prometheus knows the nodes that train."""
        return {}

    def holds(self, name: str) -> bool:
        """Say whether the node is there and has our condition."""
        conditions = objects(mapping(self._node(name).get("status")).get("conditions"))
        return any(c.get("type") == CONDITION and c.get("status") == "True" for c in conditions)

    def hold(self, line: Line) -> None:
        """Set the condition and the taint, and tell of it in an event."""
        self._set(line, True)

    def free(self, line: Line) -> None:
        """Set the condition to False, take the taint away, and tell of it in an event."""
        self._set(line, False)

    def _set(self, line: Line, is_held: bool) -> None:
        name, now, message = line["name"], iso(line["time"]), reason(line)
        uid = mapping(self._node(name).get("metadata")).get("uid")
        about = {"kind": "Node", "apiVersion": "v1", "name": name, "uid": uid}
        why = CONDITION if is_held else f"{CONDITION}Over"
        condition = {
            **{"type": CONDITION, "status": str(is_held), "reason": why, "message": message},
            **{"lastHeartbeatTime": now, "lastTransitionTime": now},
        }
        change = {"status": {"conditions": [condition]}}
        self._send("PATCH", f"/api/v1/nodes/{name}/status", change, STRATEGIC)
        if self._taints:
            self._taint(name, is_held)
        event = {
            "metadata": {"generateName": f"{name}.rankskew-", "namespace": "default"},
            "involvedObject": about,
            **{"type": "Warning" if is_held else "Normal", "reason": why, "message": message},
            **{"source": {"component": "rankskew"}, "count": 1},
            **{"firstTimestamp": now, "lastTimestamp": now},
        }
        self._send("POST", EVENTS, event)

    def _taint(self, name: str, is_wanted: bool) -> None:
        """Add or remove our taint; it is refused if somebody has changed the node meanwhile."""
        node = self._node(name)
        before = objects(mapping(node.get("spec")).get("taints"))
        after = [each for each in before if each.get("key") != TAINT]
        after += [{"key": TAINT, "value": "true", "effect": "NoSchedule"}] if is_wanted else []
        if after != before:
            version = {"resourceVersion": mapping(node.get("metadata")).get("resourceVersion")}
            change = {"metadata": version, "spec": {"taints": after}}
            self._send("PATCH", f"/api/v1/nodes/{name}", change, MERGE)

    def _node(self, name: str) -> Mapping[str, Any]:
        """Return the node *name*; one that is not there has nothing."""
        said = mapping(get_json(self._url, f"/api/v1/nodes/{name}", access=self._access))
        if said.get("kind") != "Node" and said.get("reason") != "NotFound":
            raise Trouble(f"the API server does not show {name}: {text(said.get('message'))}.")
        return said

    def _send(self, method: str, path: str, body: Any, kind: str = "application/json") -> None:
        send_json(self._url, path, body, method, kind, self._access)
