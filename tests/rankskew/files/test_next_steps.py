"""What `rankskew files` prints is the whole set-up, and can be pasted as it is."""

import subprocess
from pathlib import Path

import pytest
import yaml

from generators.listed import alert_rules
from rankskew.__main__ import main

MOST_LINES = 15


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["files", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_printed_configuration_is_one_that_prometheus_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step's lines are a configuration with the rules just written, every 15 s."""
    lines = said(capsys, str(tmp_path / "rankskew"))
    first, second = (
        next(place for place, line in enumerate(lines) if line.startswith(f"{number}. "))
        for number in (1, 2)
    )
    text = "\n".join(line.removeprefix("     ") for line in lines[first + 1 : second])
    (tmp_path / "prometheus.yml").write_text(text)
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(alert_rules.rule_files())} rule files found" in checked.stdout
    config = yaml.safe_load(text)
    assert config["global"]["evaluation_interval"] == "15s"
    assert config["scrape_configs"][0]["scrape_interval"] == "15s"


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ([], "rule_files: ['{}/alerts/rules/*.yaml']"),
        (["--vmalert"], "vmalert -rule='{}/alerts/rules/*.yaml'"),
        (["--ruler", "thanos"], "thanos rule --rule-file='{}/alerts/rules/*.yaml'"),
        (["--ruler", "mimir"], "mimirtool rules load {}/alerts/rules/*.yaml"),
    ],
)
def test_steps_are_short_and_name_files_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], first: str
) -> None:
    """Rules, inhibition, dashboards and a check, on half a screen."""
    lines = said(capsys, str(tmp_path), *more)
    text = "\n".join(lines)

    assert len(lines) <= MOST_LINES
    assert first.format(tmp_path) in text.partition("\n2. ")[0]
    assert f"inhibit_rules of {tmp_path}/alerts/alertmanager.yaml" in text
    assert "inhibit_rules:" in (tmp_path / "alerts/alertmanager.yaml").read_text()
    assert f"import {tmp_path}/dashboards/*.json" in text
    assert list((tmp_path / "dashboards").glob("*.json"))
    assert "job:rankskew_coverage:ratio" in text
