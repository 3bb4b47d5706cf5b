"""The example for Alertmanager loads there, routes by severity, and lets one cause page once."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from devstack.process import get
from generators import alert_rules
from tests.alerts.receivers import Sender

CONFIG = Path(__file__).parents[2] / "alerts" / "alertmanager.yaml"


def amtool(*arguments: str) -> str:
    """Return what amtool prints; fail if it does."""
    return subprocess.run(
        ["amtool", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": f"Rankskew{name}", **labels}


def alerts(names: str, **labels: str) -> list[dict[str, str]]:
    """Return one alert for each of the *names*, which are without their prefix."""
    return [alert(name, **labels) for name in names.split()]


def test_config_is_valid() -> None:
    """The example loads, with the inhibitions in it."""
    assert "inhibit rules" in amtool("check-config", str(CONFIG))


def receiver_of(config: Path, **labels: str) -> str:
    """Return which receiver amtool finds for an alert with *labels*."""
    matchers = [f"{name}={text}" for name, text in labels.items()]
    return amtool("config", "routes", "test", f"--config.file={config}", *matchers)


@pytest.mark.parametrize(
    ("alert", "severity", "receiver"),
    [
        ("Any", "critical", "page"),
        ("Any", "warning", "page"),
        ("Any", "info", "notes"),
        # It is a warning, for working hours.
        ("JobSlower", "warning", "notes"),
    ],
)
def test_information_wakes_nobody(alert: str, severity: str, receiver: str) -> None:
    """Only what somebody should act on goes to the pager."""
    assert receiver_of(CONFIG, alertname=f"Rankskew{alert}", severity=severity) == receiver


def test_every_alert_that_is_named_exists() -> None:
    """No inhibition waits for an alert that was renamed or dropped."""
    named = set()
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            if match := re.fullmatch(r'alertname=~?"(\w+)(?:\((.+)\))?"', matcher):
                named |= {match[1] + rest for rest in (match[2] or "").split("|")}

    assert len(named) > 20
    assert named <= set(alert_rules.alerts())


FOLLOWS_A_HANG = """
    Straggler SlowNode RankSlower RotatingImbalance StageImbalance CommunicationBound
    GpuUtilizationSkew RanksMissing NotJudgeable
    SlowStart JobSlower EfficiencyDrop InputStarvation CheckpointStall UnevenBatches
"""
EXPLAINS_A_DROP = (
    "Straggler SlowNode JobSlower RotatingImbalance InputStarvation CommunicationBound"
)
LATE = {"job_id": "twice", "rank": "1"}
LOST = {"instance": "holed", "gpu_uuid": "GPU-lost"}
UNWELL = {"instance": "holed", "gpu_uuid": "GPU-unwell"}


@pytest.mark.parametrize(
    ("sent", "held_back"),
    [
        pytest.param(
            # Each in a job of its own: some of them hold others back.
            [
                *(alert("JobHung", job_id=f"hung-{name}") for name in FOLLOWS_A_HANG.split()),
                alert("Straggler", job_id="neighbour"),
                alert("SlowNode", job_id="hung-SlowNode", cluster="other"),
            ],
            [alert(name, job_id=f"hung-{name}") for name in FOLLOWS_A_HANG.split()],
            id="while a job hangs nothing else of it is news, but another job's is",
        ),
        pytest.param(
            [
                alert("ExporterDown", instance="gone"),
                alert("GpuLost", instance="up", job_id="a"),
                # Ranks that no exporter shows are on no instance, and stay news.
                alert("RanksMissing", job_id="a"),
            ],
            [
                *alerts("Straggler RankSlower RanksMissing", instance="gone", job_id="a", rank="1"),
                *alerts("GpuLost SlowNode", instance="gone"),
            ],
            id="the last words of a node whose exporter is down are silenced",
        ),
        pytest.param(
            [alert("RanksMissing", job_id="part"), alert("SlowStart", job_id="whole")],
            alerts("NotJudgeable SlowStart", job_id="part"),
            id="missing ranks explain what a job cannot do",
        ),
        pytest.param(
            [alert("SlowStart", job_id="slow"), alert("NotJudgeable", job_id="quick")],
            [alert("NotJudgeable", job_id="slow")],
            id="a slow start explains that a job cannot be judged",
        ),
        pytest.param(
            [
                *alerts("Straggler RankSlower", job_id="node", instance="other", rank="9"),
                alert("SlowNode", job_id="node", instance="slow"),
            ],
            alerts("Straggler RankSlower", job_id="node", instance="slow", rank="1"),
            id="a slow node explains its ranks, and no other node's",
        ),
        pytest.param(
            [
                *(alert(why, job_id=why) for why in EXPLAINS_A_DROP.split()),
                alert("EfficiencyDrop", job_id="another"),
            ],
            [alert("EfficiencyDrop", job_id=why) for why in EXPLAINS_A_DROP.split()],
            id="a drop that is explained is not told again",
        ),
        pytest.param(
            [
                *alerts("Straggler GpuMemorySkew", **LATE),
                alert("GpuUtilizationSkew", job_id="twice", rank="2"),
            ],
            [alert("GpuUtilizationSkew", **LATE)],
            id="a straggler explains an idle GPU of the same rank",
        ),
        pytest.param(
            [
                alert("GpuLost", state="lost", **LOST),
                alert("NumaMismatch", **LOST),
                alert("GpuLost", state="recovery", **UNWELL),
                alert("GpuThrottled", reason="hw_slowdown", **UNWELL),
            ],
            alerts(
                "GpuXid GpuEccErrors GpuThrottled PcieLinkDegraded PcieSaturated NvlinkDown", **LOST
            ),
            id="what led to the loss of a GPU is silenced, not while it still works",
        ),
    ],
)
def test_one_cause_pages_once(
    sender: Sender, sent: list[dict[str, str]], held_back: list[dict[str, str]]
) -> None:
    """The alert that says more is the one that is sent, and what it does not explain is too."""
    sender.post(*({"labels": one} for one in sent + held_back))
    seen: list[dict[str, str]] = []
    deadline = time.monotonic() + 20  # The inhibitor takes alerts in beside the API.
    while time.monotonic() < deadline and seen != held_back:
        known: list[dict[str, Any]] = json.loads(get(f"{sender.url}/api/v2/alerts"))
        inhibited = [one["labels"] for one in known if one["status"]["inhibitedBy"]]
        seen = [labels for labels in sent + held_back if labels in inhibited]
    assert seen == held_back


@pytest.mark.parametrize(
    ("told", "paged"),
    [("nothing yet", set()), ("Rankskew(JobHung|Straggler)", {"JobHung", "Straggler"})],
)
def test_shadow_route_sends_only_what_has_left_it(
    tmp_path: Path, told: str, paged: set[str]
) -> None:
    """Alerts of ours go to a receiver without integrations, until the second matcher names them."""
    lines = CONFIG.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("    # - matchers:"))
    last = next(n for n, line in enumerate(lines) if line.endswith("receiver: shadow"))
    route = [line.replace("# ", "", 1) for line in lines[first : last + 1]]
    config = tmp_path / "alertmanager.yaml"
    text = "\n".join([*lines[:first], *route, *lines[last + 1 :], ""])
    config.write_text(text.replace("nothing yet", told))
    shutil.copy(CONFIG.parent / "notifications.tmpl", tmp_path)
    amtool("check-config", str(config))

    assert {"name": "shadow"} in yaml.safe_load(config.read_text())["receivers"]
    for name in ("JobHung", "Straggler", "SlowNode"):
        found = receiver_of(config, alertname=f"Rankskew{name}", severity="critical")
        assert found == ("page" if name in paged else "shadow")
    assert receiver_of(config, alertname="RankskewGpuXid", severity="info") == "shadow"
    assert receiver_of(config, alertname="DiskFull", severity="critical") == "page"
