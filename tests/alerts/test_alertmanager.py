"""The example for Alertmanager loads there, routes by severity, and lets one cause page once."""

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from generators.listed import alert_rules

CONFIG = Path(__file__).parents[2] / "alerts" / "alertmanager.yaml"


def amtool(*arguments: str) -> str:
    """Return what amtool prints; fail if it does."""
    return subprocess.run(
        ["amtool", *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A real Alertmanager with the example, on a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("alertmanager")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus-alertmanager",
                f"--config.file={CONFIG}",
                f"--storage.path={folder}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            _wait_until_ready(client, process)
            yield client
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail("Alertmanager did not become ready")


def assert_inhibited(
    client: httpx.Client, sent: list[dict[str, str]], held_back: list[dict[str, str]]
) -> None:
    """Post both and assert that of all these alerts those *held_back* are, and no others."""
    posted = [{"labels": one} for one in sent + held_back]
    client.post("/api/v2/alerts", json=posted).raise_for_status()
    seen: list[dict[str, str]] = []
    deadline = time.monotonic() + 20  # The inhibitor takes alerts in beside the API.
    while time.monotonic() < deadline:
        known: list[dict[str, Any]] = client.get("/api/v2/alerts").json()
        inhibited = [one["labels"] for one in known if one["status"]["inhibitedBy"]]
        seen = [labels for labels in sent + held_back if labels in inhibited]
        if seen == held_back:
            return
        time.sleep(0.05)
    assert seen == held_back


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": f"Rankskew{name}", **labels}


def alerts(names: str, **labels: str) -> list[dict[str, str]]:
    """Return one alert for each of the *names*, which are without their prefix."""
    return [alert(name, **labels) for name in names.split()]


def test_config_is_valid() -> None:
    """The example loads, with the inhibitions in it."""
    assert "inhibit rules" in amtool("check-config", str(CONFIG))


@pytest.mark.parametrize(
    ("severity", "receiver"), [("critical", "page"), ("warning", "page"), ("info", "notes")]
)
def test_information_wakes_nobody(severity: str, receiver: str) -> None:
    """Only what somebody should act on goes to the pager."""
    config = f"--config.file={CONFIG}"

    assert amtool("config", "routes", "test", config, f"severity={severity}") == receiver


def test_every_alert_that_is_named_exists() -> None:
    """No inhibition waits for an alert that was renamed or dropped."""
    named = set()
    for rule in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            if match := re.fullmatch(r'alertname=~?"(\w+)(?:\((.+)\))?"', matcher):
                named |= {match[1] + rest for rest in (match[2] or "").split("|")}

    assert len(named) > 20
    assert named <= set(alert_rules.alerts())


def test_hung_job_pages_once(alertmanager: httpx.Client) -> None:
    """While a job hangs nothing else about its steps and ranks is news, but another job's is."""
    follows = """
        Straggler SlowNode RankSlower RotatingImbalance StageImbalance CommunicationBound
        GpuUtilizationSkew RanksMissing NotJudgeable
        SlowStart EfficiencyDrop InputStarvation CheckpointStall UnevenBatches
    """
    # Each in a job of its own: some of them hold others back.
    held_back = [alert(name, job_id=f"hung-{name}") for name in follows.split()]
    hung = [alert("JobHung", job_id=one["job_id"]) for one in held_back]
    others = [alert("Straggler", job_id="neighbour")]
    others.append(alert("SlowNode", job_id="hung-SlowNode", cluster="other"))

    assert_inhibited(alertmanager, [*hung, *others], held_back)


def test_node_that_cannot_be_seen_pages_once(alertmanager: httpx.Client) -> None:
    """What was last known of a node is silenced while its exporter is down."""
    last_words = "Straggler RankSlower RanksMissing GpuLost"
    sent = [alert("ExporterDown", instance="gone"), alert("GpuLost", instance="up", job_id="a")]
    # Ranks that no exporter shows are on no instance, and stay news.
    sent.append(alert("RanksMissing", job_id="a"))
    held_back = alerts(last_words, instance="gone", job_id="a", rank="1")

    assert_inhibited(alertmanager, sent, [*held_back, alert("SlowNode", instance="gone")])


def test_missing_ranks_explain_what_a_job_cannot_do(alertmanager: httpx.Client) -> None:
    """The alert that says more is the one that is sent."""
    sent = [alert("RanksMissing", job_id="part"), alert("SlowStart", job_id="whole")]

    assert_inhibited(alertmanager, sent, alerts("NotJudgeable SlowStart", job_id="part"))


def test_slow_start_explains_that_a_job_cannot_be_judged(alertmanager: httpx.Client) -> None:
    """A job without a first step is told once."""
    sent = [alert("SlowStart", job_id="slow"), alert("NotJudgeable", job_id="quick")]

    assert_inhibited(alertmanager, sent, [alert("NotJudgeable", job_id="slow")])


def test_slow_node_explains_its_ranks(alertmanager: httpx.Client) -> None:
    """Ranks of the node are not told one by one; one on another node is."""
    sent = alerts("Straggler RankSlower", job_id="node", instance="other", rank="9")
    sent.append(alert("SlowNode", job_id="node", instance="slow"))

    assert_inhibited(
        alertmanager,
        sent,
        alerts("Straggler RankSlower", job_id="node", instance="slow", rank="1"),
    )


@pytest.mark.parametrize(
    "why",
    ["Straggler", "SlowNode", "RotatingImbalance", "InputStarvation", "CommunicationBound"],
)
def test_drop_that_is_explained_is_not_told_again(alertmanager: httpx.Client, why: str) -> None:
    """Who knows why a job has become slower need not hear that it has."""
    sent = [alert(why, job_id=why), alert("EfficiencyDrop", job_id=f"other than {why}")]

    assert_inhibited(alertmanager, sent, [alert("EfficiencyDrop", job_id=why)])


def test_straggler_explains_an_idle_gpu(alertmanager: httpx.Client) -> None:
    """For the same rank the stage is worth more than the utilisation."""
    late = {"job_id": "both", "rank": "1"}
    sent = [
        *alerts("Straggler GpuMemorySkew", **late),
        alert("GpuUtilizationSkew", job_id="both", rank="2"),
    ]

    assert_inhibited(alertmanager, sent, [alert("GpuUtilizationSkew", **late)])


def test_lost_gpu_pages_once(alertmanager: httpx.Client) -> None:
    """What led to the loss of a GPU is silenced, for that GPU, and not while it still works."""
    led_to_it = "GpuXid GpuEccErrors GpuThrottled PcieLinkDegraded PcieSaturated NvlinkDown"
    lost = {"instance": "holed", "gpu_uuid": "GPU-lost"}
    unwell = {"instance": "holed", "gpu_uuid": "GPU-unwell"}
    sent = [
        alert("GpuLost", state="lost", **lost),
        alert("NumaMismatch", **lost),
        alert("GpuLost", state="recovery", **unwell),
        alert("GpuThrottled", reason="hw_slowdown", **unwell),
    ]

    assert_inhibited(alertmanager, sent, alerts(led_to_it, **lost))


# ---- Shadow mode ---------------------------------------------------------------------------------


def shadow_config(folder: Path, told: str = "nothing yet") -> Path:
    """Return the example with its shadow route switched on, except for what is *told*."""
    lines = CONFIG.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("    # - matchers:"))
    last = next(n for n, line in enumerate(lines) if line.endswith("receiver: shadow"))
    route = [line.replace("# ", "", 1) for line in lines[first : last + 1]]
    text = "\n".join([*lines[:first], *route, *lines[last + 1 :], ""])
    path = folder / "alertmanager.yaml"
    path.write_text(text.replace("nothing yet", told))
    (folder / "notifications.tmpl").write_text(
        (CONFIG.parent / "notifications.tmpl").read_text(encoding="utf-8")
    )
    return path


def receiver_of(config: Path, **labels: str) -> str:
    """Return which receiver amtool finds for an alert with *labels*."""
    matchers = [f"{name}={text}" for name, text in labels.items()]
    return amtool("config", "routes", "test", f"--config.file={config}", *matchers)


def test_shadow_route_sends_nothing(tmp_path: Path) -> None:
    """Every alert of ours goes to a receiver without integrations, and nobody else's does."""
    config = shadow_config(tmp_path)
    amtool("check-config", str(config))
    (shadow,) = [
        each for each in yaml.safe_load(config.read_text())["receivers"] if each["name"] == "shadow"
    ]

    assert shadow == {"name": "shadow"}
    assert {
        receiver_of(config, alertname=name, severity=severity)
        for name in ("RankskewStraggler", "RankskewJobHung", "RankskewGpuXid")
        for severity in ("critical", "info")
    } == {"shadow"}
    assert receiver_of(config, alertname="DiskFull", severity="critical") == "page"


def test_alerts_leave_the_shadow_one_by_one(tmp_path: Path) -> None:
    """An alert that the second matcher names pages; the others still send nothing."""
    config = shadow_config(tmp_path, "Rankskew(JobHung|Straggler)")

    assert receiver_of(config, alertname="RankskewJobHung", severity="critical") == "page"
    assert receiver_of(config, alertname="RankskewStraggler", severity="critical") == "page"
    assert receiver_of(config, alertname="RankskewSlowNode", severity="critical") == "shadow"
