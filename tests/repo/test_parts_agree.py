"""What page, rules and runbooks say of one thing, where none can load it from another."""

import re
from pathlib import Path

import pytest
import yaml

from exporter.live.first_actions import first_action
from exporter.live.summary import UNSEEN_SECONDS
from tests.exporter.live.test_first_actions import rank, said

ROOT = Path(__file__).parents[2]
RULES = ROOT / "alerts" / "rules"


def test_page_waits_for_ranks_as_long_as_the_rules() -> None:
    """Nodes of a large job start minutes apart."""
    groups = yaml.safe_load((RULES / "ranks.yaml").read_text())["groups"]
    unseen = next(
        rule
        for group in groups
        for rule in group["rules"]
        if rule.get("expr") == "job:rankskew_ranks_missing:sum"
    )

    assert unseen["for"] == f"{UNSEEN_SECONDS / 60:.0f}m"
    state = (RULES / "state.yaml").read_text()
    assert f"job:rankskew_starting_seconds:max < {UNSEEN_SECONDS:.0f}\n" in state


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
