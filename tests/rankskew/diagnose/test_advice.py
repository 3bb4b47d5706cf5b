"""The advice covers every situation, the least disturbing action first."""

import re
from pathlib import Path

import pytest
import yaml

from exporter.live.states import STATES
from exporter.vocabulary import words
from exporter.vocabulary.words import CAUSES
from generators import alert_rules
from rank_probe.judge.verdict import REASONS
from rank_probe.wire.stages import STAGES
from rankskew.diagnose.advice import DISTURBS, PLACEHOLDERS, advice, filled, for_alert, situations
from tests.alerts.receivers import promised

ALERTS = Path(__file__).parents[3] / "alerts"
COVERAGE = ALERTS / "rules" / "coverage.yaml"
RUNBOOKS = ALERTS / "runbooks"


@pytest.mark.parametrize("cause", advice())
def test_every_detail_and_stage_has_advice(cause: str) -> None:
    """And for every detail and stage there is something that disturbs nothing."""
    assert advice()[cause].actions[0].disturbs == DISTURBS[0]
    details = {detail for action in advice()[cause].actions for detail in action.details}
    for detail in [None, *details]:
        for stage in STAGES:
            assert len(advice()[cause].steps(detail, stage)) >= 2


def test_causes_and_reasons_are_called_as_everywhere() -> None:
    """Their words are those of the vocabulary; the advice has none of its own for them."""
    said = yaml.safe_load((ALERTS / "advice.yaml").read_text())

    assert advice()["slow_device"].short == CAUSES["slow_device"].short
    assert situations()["no_sync"].text == words.REASONS["no_sync"].text
    assert set(said["causes"]) == set(CAUSES)
    assert not any("text" in entry for entry in said["causes"].values())
    assert not any("text" in said["situations"].get(name, {}) for name in words.REASONS)


def test_every_alert_has_advice_and_a_runbook() -> None:
    """Each alert belongs to one entry, whose runbook is its own."""
    every = [*advice().values(), *situations().values()]
    told = [alert for entry in every for alert in entry.alerts]

    assert sorted(told) == sorted(alert_rules.alerts())
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


def test_placeholders_are_filled_in() -> None:
    """Whole words only, and nothing that a shell would run."""
    text = "py-spy dump --pid PID; OTHER_PID on NODE"

    assert filled("`nvidia-smi -i GPU`: a GPU", {"GPU": "3"}) == "`nvidia-smi -i 3`: a GPU"
    assert filled("`nvidia-smi -i GPU-5f0c`", {"GPU": "3"}) == "`nvidia-smi -i GPU-5f0c`"
    assert filled(text, {"PID": "123", "NODE": "gpu-12"}) == (
        "py-spy dump --pid 123; OTHER_PID on gpu-12"
    )
    assert filled(text, {"NODE": "$(reboot)"}) == text
    assert set(PLACEHOLDERS) == {"JOB", "RANK", "NODE", "PID", "GPU", "UUID"}
