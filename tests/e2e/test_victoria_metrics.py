"""Nodes, vmagent, VictoriaMetrics, vmalert, Alertmanager: the page of a late rank arrives."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from devstack.parts import AlertmanagerProcess, SimulationProcess
from devstack.process import wait_for
from devstack.webhook import ReceivedAlert, Webhook
from rankskew.commands.files import write_files
from tests.alerts.vmalert import VictoriaMetrics
from tests.e2e.diagnosed import fast_rules
from tests.e2e.victoria import Agent, Ruler

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(240)]

STRAGGLER = ("RankskewStraggler", "firing")
PATIENCE_SECONDS = 90.0


def test_late_rank_is_paged(tmp_path: Path) -> None:
    """What vmagent lets pass is enough for vmalert: once, with rank, stage and cause."""
    write_files(tmp_path / "shipped")
    rules = fast_rules(tmp_path / "rules", tmp_path / "shipped" / "alerts" / "rules")
    with ExitStack() as parts:
        fleet = parts.enter_context(
            SimulationProcess(
                tmp_path / "fleet", ["--nodes=3", "--gpus=2", "--fault=thermal:node=1,gpu=1"]
            )
        )
        store = parts.enter_context(VictoriaMetrics(tmp_path / "store", "-search.latencyOffset=0s"))
        parts.enter_context(Agent(tmp_path, fleet.discovery, store.url))
        webhook = parts.enter_context(Webhook())
        alertmanager = parts.enter_context(AlertmanagerProcess(tmp_path / "am", webhook.url))
        parts.enter_context(
            Ruler(tmp_path, sorted(rules.iterdir()), store.url, alertmanager.address)
        )

        def page() -> ReceivedAlert | None:
            # It makes new series visible every ten seconds, and nine rules read one another.
            store.flush()
            return next(iter(webhook.pages(*STRAGGLER, cause="slow_device")), None)

        found = wait_for(page, PATIENCE_SECONDS, every=0.2)
        assert found, [each.labels for each in webhook.pages()]
        told = {each.labels.get("rank") for each in webhook.pages(status="firing")}

    assert (
        found.labels.items() >= {"cluster": "simulated", "rank": "3", "stage": "backward"}.items()
    )
    assert "GPU 1" in found.annotations["facts"]
    assert told == {"3"}
