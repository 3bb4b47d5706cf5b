"""The stack starts on free ports, passes an alert from a rule to the webhook, and stops."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from devstack.parts import (
    AlertmanagerProcess,
    PrometheusProcess,
    TrainingProcess,
    paging,
)
from devstack.process import StackError, missing_programs
from devstack.webhook import Webhook

FIRING = """
groups:
  - name: test
    rules:
      - alert: TestFires
        expr: rankskew:threshold:override{name="skew_ratio"} > 0.4
        labels: {severity: warning}
        annotations: {summary: "Fires for {{ $labels.job_id }}."}
"""
CONFIG = """
route: {receiver: nobody, group_by: [job_id], group_wait: 30s, routes: [{receiver: team}]}
receivers: [{name: nobody}, {name: team, webhook_configs: [{url: "http://192.0.2.1/"}]}]
inhibit_rules:
  - {source_matchers: [alertname = A], target_matchers: [alertname = B], equal: [job_id]}
"""


def test_rule_pages_the_webhook(tmp_path: Path) -> None:
    """A firing rule reaches the webhook with its labels, and every program ends afterwards."""
    rules, config = tmp_path / "rules", tmp_path / "shipped.yaml"
    rules.mkdir()
    (rules / "test.yaml").write_text(FIRING)
    config.write_text(CONFIG)
    overrides = {("skew_ratio", "a"): 0.5, ("skew_ratio", "b"): 0.3}
    with (
        Webhook() as webhook,
        AlertmanagerProcess(tmp_path, webhook.url, shipped=config) as alertmanager,
        PrometheusProcess(
            tmp_path,
            targets=[],
            alertmanager=alertmanager.address,
            rules=rules,
            interval_seconds=0.5,
            overrides=overrides,
        ) as prometheus,
    ):
        page = webhook.wait_for_alert("TestFires", 20, job_id="a")
        assert page.annotations["summary"] == "Fires for a."
        assert webhook.pages("TestFires", job_id="b") == []
        assert prometheus.value('rankskew:threshold:override{job_id="b"}') == 0.3
        assert [a["labels"]["job_id"] for a in prometheus.active_alerts()] == ["a"]

    assert prometheus.family() == []
    assert alertmanager.family() == []


def test_broken_rules_are_named(tmp_path: Path) -> None:
    """A rule file that Prometheus refuses ends with its own words, not with a timeout."""
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "broken.yaml").write_text("groups: [{name: x, rules: [{record: a, expr: 'sum('}]}]")

    with pytest.raises(StackError, match=r"(?s)Prometheus ended by itself.*broken\.yaml"):
        PrometheusProcess(tmp_path, targets=[], rules=rules).__enter__()


def test_missing_alert_says_what_came_instead() -> None:
    """Waiting in vain names the alert waited for, and that nothing came."""
    with (
        Webhook() as webhook,
        pytest.raises(StackError, match=r"no firing Absent .* in 0 s; it got: nothing"),
    ):
        webhook.wait_for_alert("Absent", 0)


def test_paging_keeps_inhibition_and_routes() -> None:
    """The shipped configuration changes in where it pages and how long it waits only."""
    config: dict[str, Any] = yaml.safe_load(CONFIG)
    paged = paging(config, "http://127.0.0.1:1/")

    assert paged["inhibit_rules"] == config["inhibit_rules"]
    assert paged["route"]["routes"] == [
        {"receiver": "team", "group_wait": "0s", "group_interval": "1s"}
    ]
    assert paged["route"]["group_by"] == ["job_id"]
    assert paged["route"]["group_wait"] == "0s"
    urls = [each["webhook_configs"][0]["url"] for each in paged["receivers"]]
    assert urls == ["http://127.0.0.1:1/"] * 2


def test_shipped_configuration_pages_the_webhook(tmp_path: Path) -> None:
    """No Slack, no PagerDuty and no template: the configuration starts wherever it is written."""
    with AlertmanagerProcess(tmp_path, "http://127.0.0.1:1/") as alertmanager:
        assert alertmanager.exit_code is None

    paged = yaml.safe_load((tmp_path / "alertmanager.yaml").read_text())
    assert {key for each in paged["receivers"] for key in each} == {"name", "webhook_configs"}
    assert paged["templates"] == []


def test_rank_that_does_not_run_is_named(tmp_path: Path) -> None:
    """Asking for the process of a rank before there is one fails in words."""
    training = TrainingProcess(tmp_path, [], exporter="unix:/nowhere")

    with pytest.raises(StackError, match="the training has no rank 2 running"):
        training.rank_pid(2)


def test_missing_programs_go_by_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program installed under its second name counts; a missing one goes by its package."""
    (tmp_path / "alertmanager").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert missing_programs(("prometheus",), ("prometheus-alertmanager", "alertmanager")) == [
        "prometheus"
    ]
