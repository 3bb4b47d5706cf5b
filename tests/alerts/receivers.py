"""A real Alertmanager with the shipped configuration, and what it sends to Slack and PagerDuty."""

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from devstack.parts import ALERTMANAGER, ALERTMANAGER_CONFIG
from devstack.post_server import PostServer
from devstack.process import StackProcess, find_program, free_port

BEGAN = "2024-01-02T07:00:30Z"
ENDED = "2024-01-02T07:13:00Z"
# The group that a message is about; the tests add this, and take it out again.
OF = (
    "{{ .GroupLabels.cluster }}/{{ .GroupLabels.job_id }} "
    "{{ len .Alerts.Firing }} {{ len .Alerts.Resolved }}"
)
PROMETHEUS_URL = "http://prometheus:9090"
GENERATOR = f"{PROMETHEUS_URL}/graph?g0.expr=vector%281%29&g0.tab=1"
PUBLIC_URL = "https://alerts.example.org"
SILENCES = f"{PUBLIC_URL}/#/silences/new?filter="


@dataclass(frozen=True)
class Promised:
    """One alert as the rules make it; a promtool test expects it."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    began: str = BEGAN

    def posted(self, ended: str | None) -> dict[str, Any]:
        """Return it as Prometheus posts it; *ended* None is firing."""
        ends = ended or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        times = {"startsAt": self.began, "endsAt": ends}
        of = {"labels": self.labels, "annotations": self.annotations}
        return {**of, "generatorURL": GENERATOR, **times}


def promised(stem: str, alert: str | None = None, **labels: str) -> list[Promised]:
    """Return the alerts that the promtool tests *stem* expect: *alert*, with at least *labels*."""
    path = Path(__file__).parent / f"{stem}.yaml"
    # All these files take two seconds in Python, and a tenth in C.
    tests = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", [])]
    return [
        Promised({"alertname": case["alertname"], **one["exp_labels"]}, one["exp_annotations"])
        for case in cases
        if alert in (None, case["alertname"])
        for one in case.get("exp_alerts", [])
        if labels.items() <= one["exp_labels"].items()
    ]


def slack(sent: dict[str, Any]) -> dict[str, Any]:
    """Return the one attachment of a message to Slack."""
    [attachment] = sent["slack"]["attachments"]
    assert attachment["fallback"] == attachment["title"]
    return dict(attachment)


def lines(attachment: dict[str, Any]) -> list[str]:
    """Return the lines of a message before its links."""
    return str(attachment["text"]).splitlines()[:-1]


def links(attachment: dict[str, Any]) -> dict[str, str]:
    """Return the links in the last line of a message."""
    last = str(attachment["text"]).splitlines()[-1]
    found = re.findall(r"<([^|>]+)\|(\w+)>", last)
    assert last == " · ".join(f"<{url}|{name}>" for url, name in found)
    return {name: url for url, name in found}


def matchers(silence_url: str) -> str:
    """Return the matchers that *silence_url* fills into its form."""
    assert silence_url.startswith(SILENCES)
    return urllib.parse.unquote(silence_url.removeprefix(SILENCES))


def elsewhere(alerts: list[Promised], **labels: str) -> list[Promised]:
    """Return *alerts* with other *labels*, for a group of their own."""
    return [Promised({**one.labels, **labels}, one.annotations) for one in alerts]


class Receivers(PostServer):
    """Stands in for Slack and PagerDuty on a loopback port; keeps what each of them is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        super().__init__(self._take, status=202)

    def _take(self, path: str, body: bytes) -> None:
        message = json.loads(body)
        if "attachments" in message:
            of = message["attachments"][0].pop("footer")
        else:
            of = message["payload"]["custom_details"].pop("of")
        self.sent.append((path.strip("/"), str(of), message))


def redirected(config: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the shipped *config* with *url* in place of Slack and PagerDuty, and short waits."""
    for receiver in config["receivers"]:
        for slack in receiver.get("slack_configs", []):
            slack.pop("api_url_file", None)
            slack |= {"api_url": f"{url}/slack", "footer": OF}
        for pagerduty in receiver.get("pagerduty_configs", []):
            del pagerduty["routing_key_file"]
            pagerduty |= {"routing_key": "key", "url": f"{url}/pagerduty"}
            pagerduty["details"]["of"] = OF
    config["route"] |= {"group_wait": "300ms", "group_interval": "1s"}
    config["templates"] = [str(ALERTMANAGER_CONFIG.parent / name) for name in config["templates"]]
    return config


@dataclass
class Sender:
    """A real Alertmanager that sends to *receivers*."""

    directory: Path
    receivers: Receivers
    url: str = field(init=False)
    process: StackProcess = field(init=False)

    def __post_init__(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        config = self.directory / "alertmanager.yaml"
        shipped = yaml.safe_load(ALERTMANAGER_CONFIG.read_text())
        config.write_text(yaml.safe_dump(redirected(shipped, self.receivers.url)))
        command = [
            find_program(ALERTMANAGER) or "prometheus-alertmanager",
            f"--config.file={config}",
            f"--storage.path={self.directory / 'data'}",
            f"--web.listen-address={address}",
            f"--web.external-url={PUBLIC_URL}",
            "--web.route-prefix=/",
            "--cluster.listen-address=",
        ]
        self.process = StackProcess("Alertmanager", command, self.directory / "log")
        self.process.ready_url = f"{self.url}/-/ready"

    def post(self, *posted: dict[str, Any]) -> None:
        """Tell Alertmanager of alerts, as Prometheus does."""
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts",
            json.dumps(posted).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request):
            pass

    def sends(
        self, firing: Sequence[Promised] = (), ended: Sequence[Promised] = ()
    ) -> dict[str, Any]:
        """Return what each receiver gets for one group with *firing* and *ended* alerts.

        Fails when it has not been sent in 20 s.
        """
        begin, alerts = len(self.receivers.sent), [*firing, *ended]
        labels = alerts[0].labels
        of = f"{labels.get('cluster', '')}/{labels.get('job_id', '')} {len(firing)} {len(ended)}"
        urgent = any(alert.labels["severity"] != "info" for alert in alerts)
        expected = {"slack", "pagerduty"} if urgent else {"slack"}
        self.post(*(one.posted(None) for one in firing), *(one.posted(ENDED) for one in ended))
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            sent = {
                to: message for to, about, message in self.receivers.sent[begin:] if about == of
            }
            if expected <= sent.keys():
                return sent
            time.sleep(0.02)
        got = [(to, about) for to, about, _ in self.receivers.sent[begin:]]
        raise self.process.failure(f"sent {got} and no {of} in 20 s")
