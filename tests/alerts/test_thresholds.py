"""Thresholds are series: every job has each of them, and its own value wins."""

from pathlib import Path

import yaml

from exporter import judge
from tests.alerts.promtool import RULES, Expect, assert_rules

VALUE = "job:rankskew_threshold:value"
RANK = {"series": 'rankskew_rank_info{job_id="j",rank="0"}', "values": "1x10"}


def defaults() -> dict[str, float]:
    """Return the default of every threshold."""
    path = next(path for path in RULES if path.stem == "thresholds")
    rules = yaml.safe_load(path.read_text())["groups"][0]["rules"]
    return {
        rule["labels"]["name"]: float(rule["expr"])
        for rule in rules
        if rule["record"] == "rankskew:threshold:default"
    }


def values(thresholds: dict[str, float]) -> dict[str, float]:
    return {f'{VALUE}{{job_id="j",name="{name}"}}': value for name, value in thresholds.items()}


def test_every_job_has_every_threshold(tmp_path: Path) -> None:
    """No default is left out of the list of names that jobs are given."""
    assert_rules(tmp_path, [RANK], [Expect(VALUE, 30, values(defaults()))])


def test_job_without_the_probe_has_every_threshold(tmp_path: Path) -> None:
    """A job that is known by its processes on the GPUs alone is judged too, and is listed once."""
    alone = {"series": 'rankskew_gpu_rank_info{job_id="j",rank="1"}', "values": "1x10"}

    assert_rules(tmp_path, [alone], [Expect(VALUE, 30, values(defaults()))])
    assert_rules(tmp_path, [alone, RANK], [Expect(VALUE, 30, values(defaults()))])


def test_override_wins_for_its_job_and_name(tmp_path: Path) -> None:
    """An override replaces one value of one job and leaves the rest as it was."""
    override = 'rankskew:threshold:override{job_id="j",name="hang_seconds"}'
    other = 'rankskew:threshold:override{job_id="other",name="skew_ratio"}'
    series = [
        RANK,
        {"series": override, "values": "10x10"},
        {"series": other, "values": "0.5x10"},
    ]
    expected = values(defaults() | {"hang_seconds": 10.0})

    assert_rules(tmp_path, series, [Expect(f'{VALUE}{{job_id="j"}}', 30, expected)])


def test_the_live_page_judges_by_the_same_limits() -> None:
    """The exporter's page and the rules call the same rank late."""
    assert defaults()["skew_ratio"] == judge.LATE_RATIO
    assert defaults()["robust_score"] == judge.LATE_SCORE
