"""The advice covers every cause, in the words of the alerts, the least disturbing action first."""

import re
from pathlib import Path

import pytest
import yaml

from exporter.advice import DISTURBS, PLACEHOLDERS, advice, filled
from rank_probe.stages import STAGES

RULES = Path(__file__).parents[2] / "alerts" / "rules" / "cause.yaml"


def words_of_alerts() -> dict[str, dict[str, str]]:
    """What the rules say of each cause, by cause."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    found = [
        rule["labels"]
        for group in groups
        for rule in group["rules"]
        if rule.get("record") == "rankskew:cause:text"
    ]
    return {labels["cause"]: labels for labels in found}


def details(cause: str) -> set[str]:
    """The details that the rules give *cause*."""
    rules = RULES.read_text()
    found = re.findall(rf"labels: {{cause: {cause}, detail: (\w+)}}", rules)
    if cause == "slow_device":
        found += re.findall(r'gpu_fault:rankskew_gpu:max{fault=~"([\w|]+)"', rules)[0].split("|")
    if cause == "input":
        found += re.findall(r'seconds_total{fstype=~"([\w|]+)"', rules)[0].split("|")
    if cause == "extra_duties":
        found += re.findall(r'ratio{part=~"(checkpoint[\w|]+)"', rules)[0].split("|")
    return set(found)


def test_every_cause_has_advice_in_the_words_of_its_alert() -> None:
    """One cause is called the same in a page and in a report."""
    words = words_of_alerts()

    assert set(advice()) == set(words)
    for cause, said in words.items():
        found = advice()[cause]
        assert found.first == said["first"]
        if cause != "unknown":
            assert (found.short, found.text) == (said["short"], said["text"])


@pytest.mark.parametrize("cause", advice())
def test_least_disturbing_action_is_first(cause: str) -> None:
    """And for every detail and stage there is something that disturbs nothing."""
    steps = [DISTURBS.index(action.disturbs) for action in advice()[cause].actions]

    assert steps[0] == 0
    for detail in [None, *details(cause)]:
        for stage in STAGES:
            found = [DISTURBS.index(each.disturbs) for each in advice()[cause].steps(detail, stage)]
            assert len(found) >= 2


@pytest.mark.parametrize("cause", advice())
def test_action_is_for_details_and_stages_that_exist(cause: str) -> None:
    """A renamed detail would silently lose its advice."""
    for action in advice()[cause].actions:
        assert set(action.details) <= details(cause)
        assert set(action.stages) <= set(STAGES)


def test_placeholders_are_filled_in() -> None:
    """Whole words only, and nothing that a shell would run."""
    text = "py-spy dump --pid PID; OTHER_PID on NODE"

    assert filled(text, {"PID": "123", "NODE": "gpu-12"}) == (
        "py-spy dump --pid 123; OTHER_PID on gpu-12"
    )
    assert filled(text, {"NODE": "$(reboot)"}) == text
    assert set(PLACEHOLDERS) == {"JOB", "RANK", "NODE", "PID", "GPU", "UUID"}
