"""The example for Alertmanager loads there, routes by severity, and lets one cause page once."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

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


def assert_inhibited(client: httpx.Client, alerts: list[dict[str, str]], names: set[str]) -> None:
    """Post *alerts* and assert that those called *names*, and no others, are kept back."""
    client.post("/api/v2/alerts", json=[{"labels": one} for one in alerts]).raise_for_status()
    seen: set[str] = set()
    deadline = time.monotonic() + 5  # The inhibitor takes alerts in beside the API.
    while seen != names and time.monotonic() < deadline:
        known: list[dict[str, Any]] = client.get("/api/v2/alerts").json()
        held_back = [one["labels"] for one in known if one["status"]["inhibitedBy"]]
        seen = {labels["alertname"] for labels in held_back if labels in alerts}
        time.sleep(0.05)
    assert seen == names


def alert(name: str, **labels: str) -> dict[str, str]:
    return {"alertname": name, **labels}


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


def test_hung_job_pages_once(alertmanager: httpx.Client) -> None:
    """While a job hangs, its stragglers, silent and missing ranks are not news."""
    follows = {
        "RankskewStraggler",
        "RankskewRankSilent",
        "RankskewRanksMissing",
        "RankskewCommunicationBound",
        "RankskewGpuUtilizationSkew",
        "RankskewNotJudgeable",
    }
    alerts = [alert(name, job_id="hung") for name in ["RankskewJobHung", *follows]]

    assert_inhibited(alertmanager, alerts, follows)


def test_another_job_still_pages(alertmanager: httpx.Client) -> None:
    """A hung job silences its own alerts and nothing of its neighbours."""
    alerts = [
        alert("RankskewJobHung", job_id="stuck"),
        alert("RankskewRankSilent", job_id="stuck"),
        alert("RankskewStraggler", job_id="neighbour"),
    ]

    assert_inhibited(alertmanager, alerts, {"RankskewRankSilent"})


def test_node_that_cannot_be_seen_pages_once(alertmanager: httpx.Client) -> None:
    """What was last known of a node is silenced while its exporter is down."""
    alerts = [
        alert("RankskewExporterDown", instance="gone"),
        alert("RankskewStraggler", instance="gone", job_id="a"),
    ]

    assert_inhibited(alertmanager, alerts, {"RankskewStraggler"})


def test_missing_ranks_explain_that_a_job_cannot_be_judged(alertmanager: httpx.Client) -> None:
    """The alert that says more is the one that is sent."""
    alerts = [
        alert("RankskewRanksMissing", job_id="part"),
        alert("RankskewNotJudgeable", job_id="part"),
    ]

    assert_inhibited(alertmanager, alerts, {"RankskewNotJudgeable"})


def test_straggler_explains_an_idle_gpu(alertmanager: httpx.Client) -> None:
    """For the same rank the stage is worth more than the utilisation."""
    alerts = [
        alert("RankskewStraggler", job_id="both", rank="1"),
        alert("RankskewGpuUtilizationSkew", job_id="both", rank="1"),
        alert("RankskewGpuMemorySkew", job_id="both", rank="1"),
    ]

    assert_inhibited(alertmanager, alerts, {"RankskewGpuUtilizationSkew"})
