"""The facts of a straggler are read from Prometheus at a cost that has a bound."""

import json
import re
from pathlib import Path

import pytest

from tests.alerts.promtool import RULES, eval_order, promtool

GROUPS = ["thresholds", "fallback", "straggler", "cause"]
RANKS = 240
PEERS_SECONDS, LATE_SECONDS = 0.042, 0.143


def series_of(rank: int, late: bool) -> dict[str, str]:
    """Return the series of one rank, of which every step takes as long as it does."""
    labels = f'job_id="j",peer_group="all",rank="{rank}",instance="n"'
    seconds = 30 * (LATE_SECONDS if late else PEERS_SECONDS)
    found = {
        f"rankskew_steps_total{{{labels}}}": "0+30x8",
        f'rankskew_stage_seconds_total{{{labels},phase="data",stage="data"}}': f"0+{seconds:g}x8",
    }
    if late:
        found[f'rankskew_late_ratio{{{labels},kind="persistent",stage="data"}}'] = "0.4x8"
        found[f'rankskew_late_gpus{{{labels},stage="data"}}'] = "6x8"
    return found


def facts(folder: Path, late: set[int]) -> list[str]:
    """Return the facts in the alerts of a job of which the ranks *late* are."""
    series = {'rankskew_job_ranks{job_id="j",peer_group="all",instance="n"}': f"{RANKS}x8"}
    series['rankskew_node_ranks{job_id="j",instance="n",state="beating"}'] = f"{RANKS}x8"
    for rank in range(RANKS):
        series |= series_of(rank, rank in late)
    case = {
        "interval": "15s",
        "input_series": [{"series": name, "values": it} for name, it in series.items()],
        # Nothing is expected, so promtool says what it got.
        "alert_rule_test": [{"eval_time": "1m", "alertname": "RankskewStraggler"}],
    }
    path = folder / "promtool.yaml"
    tests = {
        "rule_files": [str(path) for path in RULES if path.stem in GROUPS],
        "group_eval_order": eval_order(GROUPS),
        "evaluation_interval": "15s",
        "tests": [case],
    }
    path.write_text(json.dumps(tests))
    done = promtool("test", "rules", str(path))
    return re.findall(r'facts="(.+?)", ', done.stdout + done.stderr)


@pytest.mark.parametrize("late", [{2}, {2, 3, 108, 113, 239}])
def test_late_rank_is_held_against_its_peers(tmp_path: Path, late: set[int]) -> None:
    """Its own time per step and the median of its peers, of a fifth of them from 100 ranks on."""
    found = facts(tmp_path, late)

    assert len(found) == len(late)
    assert {each.split(". ")[1] for each in found} == {
        "data 143 ms vs 42 ms; cause: loader (100 %)."
    }


def test_many_late_ranks_are_not_compared_one_by_one(tmp_path: Path) -> None:
    """A query over the peers for each of many alerts would take longer than an evaluation may."""
    found = facts(tmp_path, set(range(6)))

    assert len(found) == 6
    assert {each.split(". ")[1] for each in found} == {"data 143 ms; cause: loader (100 %)."}
