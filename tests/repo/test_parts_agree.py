"""What several parts of Rankskew say of one thing is the same everywhere."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.panels import STAGE_COLOURS
from dashboards.states import STATES as STATES_ON_DASHBOARDS
from exporter.live import states
from exporter.live.first_actions import first_action
from exporter.live.sentences import DOING
from exporter.live.summary import UNSEEN_SECONDS
from exporter.top.model import UNKNOWN
from exporter.top.words import STAGE_STYLES, STATE_STYLES
from rank_probe.stages import STAGES
from tests.exporter.live.test_first_actions import rank, said

ROOT = Path(__file__).parents[2]
RULES = ROOT / "alerts" / "rules"
STATIC = ROOT / "exporter" / "live" / "static"
# The colour of a state on a dashboard, in the terminal and on the page.
RED = ("#E02F44", "bold red", "red")
ORANGE = ("#FF9830", "dark_orange", "orange")
BLUE = ("#5794F2", "blue", "grey")
GREEN = ("#37872D", "green", "green")
GREY = ("#8E99A8", "bright_black", "grey")
COLOURS = {
    "hung": RED,
    "exporter_down": ORANGE,
    "ranks_missing": ORANGE,
    "starting": BLUE,
    "not_judgeable": ORANGE,
    "slow_node": RED,
    "straggler": RED,
    "rotating": ORANGE,
    "healthy": GREEN,
    "finished": GREY,
    "no_probe": GREY,
}


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def colours_on_the_page() -> dict[str, str]:
    """The colour of each state: that of `.STATE { --state: var(--COLOUR); }`, else grey."""
    found = re.findall(r"^(\.\w+.*) { --state: var\(--(\w+)\);", css(), re.MULTILINE)
    given = {name: colour for names, colour in found for name in re.findall(r"\w+", names)}
    return {state: given.get(state, given["job"]) for state in states.STATES}


def css() -> str:
    return (STATIC / "live.css").read_text()


def test_states_have_one_order_and_one_word() -> None:
    """The rules, the dashboards and the page's scripts repeat exporter/live/states.py."""
    recorded = next(
        each["expr"] for each in rules("state.yaml") if each["record"] == "job:rankskew_state:info"
    )
    scripts = (STATIC / "words.js").read_text().partition("STATES = {")[2].partition("}")[0]

    # Twice: a job is not judgeable too while nothing else is recorded.
    in_rules = dict.fromkeys(re.findall(r'"state", "(\w+)"', recorded))

    assert tuple(in_rules) == states.STATES
    assert re.findall(r'(\w+): "([^"]+)"', scripts) == list(states.WORDS.items())
    on_dashboards = [(state, word) for state, (word, _) in STATES_ON_DASHBOARDS.items()]
    assert on_dashboards == list(states.WORDS.items())


@pytest.mark.parametrize("state", states.STATES)
def test_state_has_one_colour(state: str) -> None:
    """Red, orange, green and quiet mean the same on a dashboard, in a terminal and on the page."""
    shown = (STATES_ON_DASHBOARDS[state][1], STATE_STYLES[state], colours_on_the_page()[state])

    assert shown == COLOURS[state]
    assert set(STATE_STYLES) == {*states.STATES, UNKNOWN}


def test_stage_has_one_colour() -> None:
    """A stage is told by its colour; only the page draws the wait in stripes of its own."""
    on_dashboards = {stage: colour.lower() for stage, colour in STAGE_COLOURS.items()}
    on_page = dict(re.findall(r"--(\w+): (#\w{6});", css()))

    assert on_dashboards == STAGE_STYLES
    assert set(STAGE_STYLES) == set(STAGES)
    assert {stage: on_page[stage] for stage in STAGES if stage != "sync"} == {
        stage: colour for stage, colour in STAGE_STYLES.items() if stage != "sync"
    }


def test_page_waits_for_ranks_as_long_as_the_rules() -> None:
    """Nodes of a large job start minutes apart."""
    unseen = next(
        each for each in rules("ranks.yaml") if each.get("expr") == "job:rankskew_ranks_missing:sum"
    )

    assert unseen["for"] == f"{UNSEEN_SECONDS / 60:.0f}m"
    state = (RULES / "state.yaml").read_text()
    assert f"job:rankskew_starting:timestamp < {UNSEEN_SECONDS:.0f}\n" in state


def test_stages_are_put_into_the_same_words() -> None:
    """Page and alerts say alike what a late rank is slow in."""
    texts = [
        each["labels"]
        for each in rules("straggler.yaml")
        if each.get("record") == "rankskew:stage:text"
    ]

    assert {each["stage"]: each["text"] for each in texts} == DOING


def programs(text: str) -> set[str]:
    return set(re.findall(r"\b(py-spy dump|nvidia-smi|top -H|ps -o|rankskew control)\b", text))


@pytest.mark.parametrize(
    ("alert", "action"),
    [
        ("RankskewStraggler", said("straggler", {"stage": "data"})),
        ("RankskewSlowNode", said("slow_node", {"kind": "node"})),
        ("RankskewJobHung", said("hung", ranks=(rank(1, stage="data"),))),
        ("RankskewJobHung", said("hung", ranks=(rank(1, silent=True),))),
        ("RankskewRanksMissing", said("ranks_missing", ranks=(rank(1, silent=True),))),
        ("RankskewNotJudgeable", first_action("llama", "not_judgeable", "off", [], [])),
        (
            "RankskewSlowStart",
            first_action("llama", "starting", None, [], [rank(0)], "RankskewSlowStart"),
        ),
    ],
)
def test_page_and_runbook_begin_with_the_same_program(alert: str, action: str | None) -> None:
    """Who reads the page and who is paged are sent to look at the same thing first."""
    runbook = (ROOT / "alerts" / "runbooks" / f"{alert}.md").read_text()
    first_minute = runbook.partition("## Meaning")[0]

    assert programs(action or "")
    assert programs(action or "") <= programs(first_minute)
