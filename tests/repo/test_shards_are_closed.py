"""Each part of the rules has all that it reads, and no verdict on a job is given twice."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from alerts import build_index, build_shards
from exporter.bundle import Wanted, write_files
from exporter.shards import EVERYWHERE, GIVEN, LOOKED_UP, PARTS, RULERS, Part, Ruler
from tests.repo.test_alerts_read_series_that_exist import QUERY, SERIES, exposed

PLAN = build_shards.plan()
# What only one Prometheus sees. Levels of a job on a shard are a part, and are named so.
OF_ONE_NODE = {"rank", "node", "instance", "gpu"}
# Prometheus adds these itself.
SCRAPED = exposed() | {"up", "process_start_time_seconds"}
# The format of Prometheus' rules, strictly: https://prometheus.io/docs/prometheus/2.42/configuration/
# recording_rules/. What a Thanos Ruler adds: https://thanos.io/tip/components/rule.md/#partial-response,
# and what mimirtool does: RuleNamespace in pkg/mimirtool/rules/rules.go (known fields only).
GROUP = {"name": str, "interval": str, "rules": list}
RULE = {"record": str, "alert": str, "expr": str, "for": str, "labels": dict, "annotations": dict}
FILE: dict[str, dict[str, type]] = {
    "thanos": {"groups": list},
    "mimir": {"groups": list, "namespace": str},
}
MORE: dict[str, dict[str, type]] = {"thanos": {"partial_response_strategy": str}, "mimir": {}}


def test_every_rule_has_one_place() -> None:
    """Nothing is lost or evaluated twice; only thresholds are on both."""
    everything = [rule for path in build_index.rule_files() for rule in build_index.rules(path)]
    shard, whole = PLAN.rules("shard"), PLAN.rules("global")
    both = [rule for rule in shard if rule.group == EVERYWHERE and rule in whole]

    assert len(shard) + len(whole) == len(everything) + len(both)
    assert {rule.record for rule in both} == {
        "job:rankskew_job:group",
        "job:rankskew_threshold:value",
        "rankskew:threshold:default",
    }


def test_shards_read_what_they_scrape_or_record() -> None:
    """A rule of a shard needs nothing of other shards, nor of the global Prometheus."""
    rules = PLAN.rules("shard")
    has = SCRAPED | {rule.record for rule in rules} | GIVEN

    assert [(rule, rule.reads - has) for rule in rules if rule.reads - has] == []


def test_global_reads_what_travels() -> None:
    """And all that travels is scraped or recorded on a shard."""
    here = {rule.record for rule in PLAN.rules("global")}
    there = {rule.record for rule in PLAN.rules("shard")}
    travelling = set(PLAN.travelling())
    copies = {f"suspect:{name}:copy" for name in LOOKED_UP}

    for rule in PLAN.rules("global"):
        assert rule.reads <= here | travelling | GIVEN, rule
    assert travelling - copies <= SCRAPED | there
    assert not travelling & here


def test_shards_record_parts_of_jobs_as_such() -> None:
    """What a shard knows of a job is not all of it, and never has the name of the whole."""
    records = {
        rule.record for rule in PLAN.rules("shard") if rule.record and rule.group != EVERYWHERE
    }
    levels = {record.split(":")[0] for record in records}

    assert {
        level for level in levels if level.split("_")[0] not in OF_ONE_NODE | {"shard"}
    } == set()


def test_alerts_of_shards_are_about_one_node() -> None:
    """Each has an instance in all of its tests, so that no two shards can tell the same."""
    shard = {
        rule["alert"]
        for text in PLAN.files("shard").values()
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    told: dict[str, list[dict[str, Any]]] = {}
    for path in (Path(__file__).parents[1] / "alerts").glob("*.yaml"):
        for test in yaml.safe_load(path.read_text())["tests"]:
            for case in test.get("alert_rule_test", []):
                told.setdefault(case["alertname"], []).extend(case.get("exp_alerts") or [])

    assert shard
    for name in shard:
        assert all("instance" in alert["exp_labels"] for alert in told[name]), name


def test_texts_on_shards_look_up_what_is_there() -> None:
    """A text of a shard's alert finds what it asks for; the global one has copies of the rest."""
    has = SCRAPED | {rule.record for rule in PLAN.rules("shard")}
    whole = "".join(PLAN.files("global").values())
    recorded_there = {rule.record for rule in PLAN.rules("shard") if rule.group != EVERYWHERE}

    assert texts("shard") <= has
    assert texts("global") & recorded_there <= set(PLAN.travelling())
    assert [name for name in LOOKED_UP if f"{name}{{" not in whole] == []


def texts(part: Part) -> set[str]:
    """Return the series that the texts of alerts look up."""
    rules = [
        rule
        for text in PLAN.files(part).values()
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]
    queries = [
        query
        for rule in rules
        for text in rule.get("annotations", {}).values()
        for query in QUERY.findall(text)
    ]
    return {name for query in queries for name in SERIES.findall(re.sub(r'\\"[^"]*\\"', "", query))}


@pytest.mark.parametrize("part", PARTS)
def test_promtool_takes_the_rules_of_each_part(part: Part, tmp_path: Path) -> None:
    """`rankskew files --part` writes files that Prometheus loads."""
    written = write_files(tmp_path, wanted=Wanted(part=part))
    files = [str(path) for path in written if path.parent.name == "rules"]
    done = subprocess.run(
        ["promtool", "check", "rules", *files], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("ruler", RULERS)
@pytest.mark.parametrize("part", [None, "global"])
def test_rulers_know_every_field(ruler: Ruler, part: Part | None, tmp_path: Path) -> None:
    """A Thanos Ruler and mimirtool refuse a file with a field that they do not know."""
    written = write_files(tmp_path, wanted=Wanted(part=part, ruler=ruler))
    files = [yaml.safe_load(path.read_text()) for path in written if path.parent.name == "rules"]

    for file in files:
        check(file, FILE[ruler], {"groups"})
        for group in file["groups"]:
            check(group, GROUP | MORE[ruler], {"name", "rules"} | MORE[ruler].keys())
            assert group.get("partial_response_strategy", "abort") in ("abort", "warn")
            for rule in group["rules"]:
                check(rule, RULE, {"expr"})
                assert ("record" in rule) != ("alert" in rule)
                strings = {**rule.get("labels", {}), **rule.get("annotations", {})}.values()
                assert all(isinstance(text, str) for text in strings)
    names = [file.get("namespace", number) for number, file in enumerate(files)]
    assert len(set(names)) == len(files)


def check(mapping: dict[str, Any], known: Mapping[str, type], needed: set[str]) -> None:
    """Fail if *mapping* has an unknown field, one of another type, or lacks one."""
    assert needed <= mapping.keys() <= known.keys(), mapping.keys()
    assert all(isinstance(value, known[name]) for name, value in mapping.items())


def test_deployed_names_are_up_to_date() -> None:
    """The configurations in deploy/prometheus let pass what the rules read."""
    assert [path.stem for path in build_shards.files()] == ["federation", "remote_write", "vmagent"]
    for path in build_shards.files():
        text = path.read_text()
        assert text == build_shards.with_names(text), "run python -m alerts.build_shards"
