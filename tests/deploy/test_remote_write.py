"""Shards that write what travels to VictoriaMetrics, where vmalert has the global rules."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from benchmarks.diagnose import fast_rules
from demo.process import wait_for
from demo.stack import Alertmanager, Prometheus, Simulation
from demo.webhook import Page, Webhook
from exporter.bundle import Wanted, write_files
from tests.alerts.vmalert import VictoriaMetrics
from tests.e2e.shards import SHARDS, load, shard
from tests.e2e.victoria import Ruler

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(300)]

FLEET = ["--nodes=6", "--gpus=2", "--fault=thermal:node=1,gpu=1"]
PATIENCE_SECONDS = 150.0


def writing(directory: Path, number: int, discovery: str, url: str) -> Prometheus:
    """Return a shard that writes to *url* what remote_write.yaml lets pass."""
    one = shard(directory, number, {"east": discovery})
    config = directory / "prometheus.yaml"
    settings = yaml.safe_load(config.read_text()) | load("remote_write.yaml")
    settings["remote_write"][0]["url"] = f"{url}/api/v1/write"
    config.write_text(yaml.safe_dump(settings))
    return one


def test_late_rank_is_paged_once(tmp_path: Path) -> None:
    """What travels is enough for vmalert: the cost, the cause, and the text with GPU and time."""
    write_files(tmp_path / "shipped", wanted=Wanted(vmalert=True, part="global"))
    rules = fast_rules(tmp_path / "rules", tmp_path / "shipped" / "alerts" / "rules")
    with ExitStack() as parts:
        fleet = parts.enter_context(Simulation(tmp_path / "fleet", FLEET))
        store = parts.enter_context(VictoriaMetrics(tmp_path / "store", "-search.latencyOffset=0s"))
        for number in range(SHARDS):
            directory = tmp_path / f"shard-{number}"
            parts.enter_context(writing(directory, number, fleet.discovery, store.url))
        webhook = parts.enter_context(Webhook())
        alertmanager = parts.enter_context(Alertmanager(tmp_path / "alertmanager", webhook.url))
        files = sorted(rules.iterdir())
        parts.enter_context(Ruler(tmp_path, files, store.url, alertmanager.address))

        def page() -> Page | None:
            store.flush()
            found = webhook.pages("RankskewStraggler", "firing", cause="slow_device")
            return next((one for one in found if " ms" in one.annotations["facts"]), None)

        found = wait_for(page, PATIENCE_SECONDS, every=0.2)
        assert found, [each.labels for each in webhook.pages()]
        told = {each.labels.get("rank") for each in webhook.pages(status="firing")}

    labels = {"cluster": "east", "rank": "3", "stage": "backward"}
    assert found.labels.items() >= labels.items()
    assert "GPU 1, PID" in found.annotations["facts"]
    assert "shard" not in found.labels
    assert told == {"3"}
