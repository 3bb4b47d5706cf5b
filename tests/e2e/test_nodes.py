"""`rankskew nodes` on a real Prometheus whose past is a simulated month."""

import json
import time
from collections.abc import Iterator

import pytest

from benchmarks.nodes import MONTH_SECONDS, backfill
from exporter.errors import StartError
from fleet_simulator.month import Month, simulate
from fleet_simulator.stack.parts import PrometheusProcess
from rankskew.commands import nodes
from rankskew.report.times import HOUR_SECONDS

Fleet = tuple[Month, PrometheusProcess, float]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    end = time.time() // HOUR_SECONDS * HOUR_SECONDS
    month = simulate(2, end - MONTH_SECONDS, nodes=32, lemons=4)
    directory = tmp_path_factory.mktemp("prometheus")
    backfill(month, directory)
    with PrometheusProcess(directory, keeps="60d") as prometheus:
        yield month, prometheus, end


def test_what_prometheus_says_is_what_was_recorded(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every node with its jobs, hours and losses; the lemons first."""
    month, prometheus, end = fleet
    assert nodes.run(["--prometheus", prometheus.url, "--weeks", "4.4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    past = {each.name: each for each in month.past(end).nodes}

    assert {each["name"] for each in said["nodes"][:6]} >= set(month.lemons)
    assert {each["name"] for each in said["nodes"]} == set(past)
    for each in said["nodes"]:
        node = past[each["name"]]
        assert each["gpu_hours_lost"] == pytest.approx(node.lost_gpu_hours, rel=1e-4)
        lost = each["gpu_hours_lost"] or None
        assert each["dollars_lost"] == (lost and pytest.approx(2 * lost))
        assert each["kilowatt_hours_lost"] == (lost and pytest.approx(lost / 2))
        assert each["gpu_hours_used"] == pytest.approx(node.used_gpu_hours, rel=1e-4)
        assert (each["jobs"], len(each["incidents"])) == (node.jobs, len(node.incidents))
        assert each["serial"] is None
    assert said["gpus"]
    for each in said["gpus"]:
        assert each["serial"] == each["name"].replace("GPU-", "165-")
        assert f"serial number {each['serial']}" in each["sentence"]


def test_week_is_divided_in_three_ways(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """By cause, job and team; each adds up to what nodes cost in GPU-hours, money and energy."""
    assert nodes.run(["--prometheus", fleet[1].url, "--weeks", "5", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    lost = sum(each["gpu_hours_lost"] for each in said["nodes"]) / 5

    assert set(said["week"]["by_team"]) == {"team0", "team1", "team2"}
    assert {"slow_device", "network", "cpu", "input"} <= set(said["week"]["by_cause"])
    for sums in said["week"].values():
        for name, rate in (("gpu_hours", 1.0), ("dollars", 2.0), ("kilowatt_hours", 0.5)):
            assert sum(each[name] for each in sums.values()) == pytest.approx(rate * lost)


def test_text_names_them(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has the GPU that is to blame, and ends where asked."""
    month, prometheus, _ = fleet
    assert nodes.run(["--prometheus", prometheus.url]) == 0
    said = capsys.readouterr().out
    hot = next(name for name, lemon in month.lemons.items() if lemon.gpu is not None)

    assert f"all on GPU GPU-{hot}-5" in said
    assert "The first 20 of 32; --all prints all." in said


def test_period_without_a_record_is_told(fleet: Fleet) -> None:
    """It may be before the rules were loaded."""
    with pytest.raises(StartError, match=r"nothing was recorded of nodes .* nodes.yaml"):
        nodes.run(["--prometheus", fleet[1].url, "--at", "2020-01-01"])
