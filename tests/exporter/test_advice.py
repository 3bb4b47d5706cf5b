"""The advice covers every cause, in the words of the alerts, the least disturbing action first."""

import re
from pathlib import Path

import pytest
import yaml

from alerts import build_index
from exporter.advice import (
    DISTURBS,
    KNOWN_BY,
    PLACEHOLDERS,
    advice,
    filled,
    for_alert,
    situations,
)
from exporter.live.states import STATES
from rank_probe.stages import STAGES
from rank_probe.verdict import REASONS
from tests.alerts.receivers import promised

ALERTS = Path(__file__).parents[2] / "alerts"
RULES = ALERTS / "rules" / "cause.yaml"
COVERAGE = ALERTS / "rules" / "coverage.yaml"
RUNBOOKS = ALERTS / "runbooks"


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
def test_it_is_known_how_each_cause_is_known(cause: str) -> None:
    """A detail that the rules give and the advice does not list would lower the confidence."""
    known_by = advice()[cause].known_by

    assert set(known_by.values()) <= set(KNOWN_BY)
    assert details(cause) <= set(known_by)


def test_every_alert_has_advice_and_a_runbook() -> None:
    """Each alert belongs to one entry, whose runbook is its own."""
    every = [*advice().values(), *situations().values()]
    told = [alert for entry in every for alert in entry.alerts]

    assert sorted(told) == sorted(build_index.alerts())
    for entry in every:
        assert (RUNBOOKS / f"{entry.runbook}.md").is_file()
        if entry.alerts:
            assert entry.runbook == entry.alerts[0]
    assert for_alert("RankskewNoSuchAlert") is None


def test_each_state_and_reason_has_advice() -> None:
    """What a job can be besides healthy is a cause, a situation or both."""
    reasons = set(re.findall(r'"reason", "(\w+)"|reason: (\w+)', COVERAGE.read_text()))
    names = {one or other for one, other in reasons} | set(REASONS)
    late = {"hung", "slow_node", "straggler", "healthy", "not_judgeable", "ranks_missing"}

    assert names - {"ranks_missing", "ranks_silent"} <= set(situations())
    assert set(STATES) - late <= set(situations())
    assert {"hung", "hung_together", "ranks_missing", "ranks_silent"} <= set(situations())


@pytest.mark.parametrize("name", situations())
def test_situation_begins_with_what_disturbs_least(name: str) -> None:
    """The actions of a situation are in the order of least disturbance too."""
    steps = [DISTURBS.index(action.disturbs) for action in situations()[name].actions]

    assert steps == sorted(steps)
    assert situations()[name].first


@pytest.mark.parametrize(
    ("situation", "alert", "values"),
    [
        ("hung", "RankskewJobHung", {"PID": "31337", "NODE": "gpu-4"}),
        ("ranks_silent", "RankskewRanksMissing", {"NODE": "m"}),
    ],
)
def test_situation_begins_with_the_words_of_its_alert(
    situation: str, alert: str, values: dict[str, str]
) -> None:
    """What a page says to do first is what the report says."""
    stem = "notifications" if alert == "RankskewJobHung" else alert
    said = [one.annotations["first"] for one in promised(stem, alert) if "first" in one.annotations]

    assert filled(situations()[situation].first, values) in said


@pytest.mark.parametrize("cause", advice())
def test_action_is_for_details_and_stages_that_exist(cause: str) -> None:
    """A renamed detail would silently lose its advice."""
    for action in advice()[cause].actions:
        assert set(action.details) <= details(cause)
        assert set(action.stages) <= set(STAGES)


def test_placeholders_are_filled_in() -> None:
    """Whole words only, and nothing that a shell would run."""
    text = "py-spy dump --pid PID; OTHER_PID on NODE"

    assert filled("`nvidia-smi -i GPU`: a GPU", {"GPU": "3"}) == "`nvidia-smi -i 3`: a GPU"
    assert filled(text, {"PID": "123", "NODE": "gpu-12"}) == (
        "py-spy dump --pid 123; OTHER_PID on gpu-12"
    )
    assert filled(text, {"NODE": "$(reboot)"}) == text
    assert set(PLACEHOLDERS) == {"JOB", "RANK", "NODE", "PID", "GPU", "UUID"}
