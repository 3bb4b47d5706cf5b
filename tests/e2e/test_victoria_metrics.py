"""Nodes, vmagent, VictoriaMetrics, vmalert, Alertmanager: the page of a late rank arrives."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from devstack.parts import AlertmanagerProcess, SimulationProcess
from devstack.process import StackProcess, free_port, get, wait_for
from devstack.webhook import ReceivedAlert, Webhook
from rankskew.commands.files import write_files
from tests.e2e.conftest import fast_rules

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(240)]

VMAGENT: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "vmagent.yaml"
INTERVAL: Final = "1s"
PATIENCE_SECONDS: Final = 90.0


def program(directory: Path, name: str, *flags: str) -> StackProcess:
    """Return the *name* of VictoriaMetrics with *flags*, on a loopback port."""
    address = f"127.0.0.1:{free_port()}"
    command = [name, *flags, f"-httpListenAddr={address}", "-loggerLevel=WARN"]
    process = StackProcess(name, command, directory / f"{name}.log")
    process.ready_url = f"http://{address}/health"
    return process


def agent_config(directory: Path, discovery: str) -> Path:
    """Return our configuration of vmagent, for the nodes that *discovery* names."""
    config: dict[str, Any] = yaml.safe_load(VMAGENT.read_text())
    config["global"]["scrape_interval"] = INTERVAL
    [job] = config["scrape_configs"]
    del job["static_configs"]
    job["http_sd_configs"] = [{"url": discovery}]
    path = directory / "vmagent.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_late_rank_is_paged(tmp_path: Path) -> None:
    """vmalert loads all rules, and pages rank, stage and cause once on what vmagent forwards."""
    write_files(tmp_path / "shipped")
    rules = fast_rules(tmp_path / "rules", tmp_path / "shipped" / "alerts" / "rules")
    fleet = SimulationProcess(
        tmp_path / "fleet", ["--nodes=3", "--gpus=2", "--fault=thermal:node=1,gpu=1"]
    )
    with ExitStack() as parts:
        parts.enter_context(fleet)
        store = program(
            tmp_path,
            "victoria-metrics",
            f"-storageDataPath={tmp_path / 'data'}",
            "-search.disableCache",
            "-search.latencyOffset=0s",
            "-memory.allowedBytes=256MB",
        )
        parts.enter_context(store)
        url = str(store.ready_url).removesuffix("/health")
        agent = program(
            tmp_path,
            "vmagent",
            f"-promscrape.config={agent_config(tmp_path, fleet.discovery)}",
            f"-remoteWrite.tmpDataPath={tmp_path / 'vmagent'}",
            "-memory.allowedBytes=128MB",
            f"-remoteWrite.url={url}/api/v1/write",
            "-remoteWrite.flushInterval=100ms",
        )
        parts.enter_context(agent)
        webhook = parts.enter_context(Webhook())
        alertmanager = parts.enter_context(AlertmanagerProcess(tmp_path / "am", webhook.url))
        ruler = program(
            tmp_path,
            "vmalert",
            *(f"-rule={path}" for path in sorted(rules.iterdir())),
            f"-evaluationInterval={INTERVAL}",
            f"-datasource.url={url}",
            f"-remoteRead.url={url}",
            f"-notifier.url=http://{alertmanager.address}",
            f"-remoteWrite.url={url}",
            "-remoteWrite.flushInterval=100ms",
        )
        parts.enter_context(ruler)

        def page() -> ReceivedAlert | None:
            # Without a flush new series take ten seconds to show, in each of nine chained rules.
            get(f"{url}/internal/force_flush")
            found = webhook.pages("RankskewStraggler", "firing", cause="slow_device")
            return next(iter(found), None)

        found = wait_for(page, PATIENCE_SECONDS, every=0.2)
        assert found, [each.labels for each in webhook.pages()]
        told = {each.labels.get("rank") for each in webhook.pages(status="firing")}

    assert (
        found.labels.items() >= {"cluster": "simulated", "rank": "3", "stage": "backward"}.items()
    )
    assert "GPU 1" in found.annotations["facts"]
    assert told == {"3"}
