"""What a release has named stays: users have it in their rules, dashboards, scripts and jobs."""

import re
from collections import Counter

import pytest

from generators.public_names import FILE, names, recorded

KEPT = FILE.read_text().splitlines()


@pytest.fixture(scope="module")
def today() -> set[str]:
    """The names of this tree."""
    return set(names())


def still_there(promised: str, today: set[str], bridges: set[str]) -> bool:
    """Whether *promised* exists, has a record as its bridge, or has gained labels of an _info."""
    kind, _, name = promised.partition(" ")
    if promised in today or (kind in ("metric", "record") and name.partition("{")[0] in bridges):
        return True
    series, _, labels = name.rstrip("}").partition("{")
    return series.endswith("_info") and any(
        each.startswith(f"metric {series}{{")
        and set(labels.split(",")) <= set(re.split(r"[,{}]", each))
        for each in today
    )


def test_every_promised_name_exists_or_is_bridged(today: set[str]) -> None:
    """A rename needs a rule that records the old name; see docs/lifecycle.md."""
    bridges = recorded()

    assert [name for name in KEPT if not still_there(name, today, bridges)] == []


@pytest.mark.parametrize(
    ("promised", "is_kept"),
    [
        ("metric rankskew_steps_total{job_id,peer_group,rank}", True),
        ("metric rankskew_steps_total{job_id,rank}", False),
        ("metric rankskew_runtime_info{job_id,rank,torch}", True),
        ("metric rankskew_runtime_info{job_id,rank,tensorflow}", False),
        ("metric job:rankskew_gpus_lost:sum{job_id}", True),
        ("record job:rankskew_gpus_lost:mean1m", False),
        ("flag rankskew files --overwrite", True),
        ("flag rankskew files --force", False),
        ("alert RankskewRankSilent", False),
        ("field top/1 jobs.late.cause.first_action", True),
        ("field diagnose/1 loss.gpus", True),
        ("field top/1 jobs.late.reason", False),
    ],
)
def test_what_keeps_a_promise(today: set[str], promised: str, is_kept: bool) -> None:
    """An _info series may gain labels; any other change of labels, and a name that is gone, not."""
    assert still_there(promised, today, recorded()) == is_kept


def test_promise_covers_every_kind() -> None:
    """Of each kind of name there are as many as there were, and none is found twice."""
    kinds = Counter(name.partition(" ")[0] for name in KEPT)

    assert sorted(set(KEPT)) == KEPT
    assert min(kinds.values()) > 5
    assert sorted(kinds) == sorted(
        ["alert", "field", "flag", "metric", "python", "record", "stage", "threshold", "variable"]
    )
