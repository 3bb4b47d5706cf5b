"""`rankskew act` between a real Alertmanager, a real Prometheus and a program that is told."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fleet_simulator.stack.parts import (
    ALERTMANAGER_CONFIG,
    AlertmanagerProcess,
    PrometheusProcess,
    SimulationProcess,
)
from fleet_simulator.stack.post_server import PostServer
from fleet_simulator.stack.process import free_port
from tests.rankskew.act.test_command import TOKEN, Acting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Two jobs of two nodes each: a hot GPU in the first, a slow loader in the second.
FLEET: Final = ["--nodes=4", "--gpus=4", "--jobs=2"]
FAULTS: Final = ["--fault=thermal:node=1", "--fault=loader:node=3"]


def test_node_with_a_hot_gpu_is_held_and_one_with_a_slow_loader_is_not(tmp_path: Path) -> None:
    """From a fault to the program that is told; the queries are those that Prometheus takes."""
    told: list[dict[str, Any]] = []
    shipped = tmp_path / "alertmanager-shipped.yaml"
    config = yaml.safe_load(ALERTMANAGER_CONFIG.read_text())
    config["global"] = {"http_config": {"authorization": {"credentials": TOKEN}}}
    shipped.write_text(yaml.safe_dump(config))
    with ExitStack() as parts:
        hook = parts.enter_context(PostServer(lambda _, body: told.append(json.loads(body))))
        simulation = parts.enter_context(SimulationProcess(tmp_path / "s", [*FLEET, *FAULTS]))
        port = free_port()
        more = ["--webhook", hook.url, "--for-real", "--times=1", "--most-percent=50"]
        acting = Acting(tmp_path, f"http://127.0.0.1:{port}", *more)
        url = f"{acting.url}/alertmanager"
        alertmanager = parts.enter_context(
            AlertmanagerProcess(tmp_path / "a", url, shipped=shipped)
        )
        parts.enter_context(
            PrometheusProcess(
                tmp_path,
                alertmanager=alertmanager.address,
                discovery=simulation.discovery,
                port=port,
            )
        )
        parts.enter_context(acting.running())
        held, waits = acting.wait_for("hold", 150), acting.wait_for("wait", 60)

    assert (waits["rule"], waits["cause"]) == ("cause", "input")
    assert [(each["event"], each["name"]) for each in told] == [("hold", held["name"])]
    assert (held["cause"], held["detail"]) == ("slow_device", "clocks")
    assert held["sentence"].startswith("slow GPU (clock) for ")
    assert held["name"] != waits["name"]
    assert told == [held]
