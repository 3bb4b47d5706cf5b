"""The join on real ranks over gloo: who is late and what it costs, and nobody is disturbed."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rank_probe.wire.stages import STAGES
from rankskew.accounting.step import charge
from tests.rank_probe.forks import Zygote, serving
from tests.rank_probe.join.join_job import DELAY, LATE_RANK, LATE_STAGE

pytestmark = pytest.mark.jobs

RANKS = 4

Account = tuple[int, str]  # a rank and its stage


def reference(answers: list[dict[str, Any]]) -> Mapping[Account, float]:
    """Return the GPU-seconds a second on each account, from all vectors."""
    # The join begins after the first step.
    steps = list(zip(*(answer["vectors"][1:] for answer in answers), strict=True))
    caused: dict[Account, float] = defaultdict(float)
    seconds = 0.0
    for ranks in steps:
        assert len({number for number, _, _ in ranks}) == 1
        stages = {
            rank: {stage: each / 1e9 for stage, each in zip(STAGES, spent, strict=True)}
            for rank, (_, _, spent) in enumerate(ranks)
        }
        charges = charge(stages, {})
        for account, share in charges.caused.items():
            caused[account] += share
        seconds += sum(stages[0].values())
    return {account: share / seconds for account, share in caused.items()}


def test_late_rank_learns_what_it_costs(zygote: Zygote, tmp_path: Path) -> None:
    """Rank and stage get the cost of the reference, all steps count, and no key is left."""
    store = serving()
    known = {"RANKSKEW_EXPORTER": f"unix:{tmp_path}/nobody"}
    job = ("tests.rank_probe.join.join_job", str(tmp_path))
    with zygote.ranks(tmp_path, *job, ranks=RANKS, server=store, **known) as forks:
        assert [fork.wait(60) for fork in forks] == [0] * RANKS
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    caused = reference(answers)
    snapshots = [answer["snapshot"] for answer in answers]

    late = caused[LATE_RANK, LATE_STAGE]
    assert late > 0.5 * (RANKS - 1) * DELAY / (DELAY + 0.05)
    for rank, snapshot in enumerate(snapshots):
        for stage, seconds in snapshot["wait_caused_seconds"].items():
            lost = seconds / snapshot["joined_seconds"]
            assert lost == pytest.approx(caused.get((rank, stage), 0), abs=0.05 * late), stage
        assert snapshot["join_coverage"] > 0.9
        assert snapshot["probe_errors"] == 0
        assert snapshot["group_wait_seconds"] is None
        occurred = snapshot["stage_seconds"].keys() - {"sync"}
        assert snapshot["wait_caused_seconds"].keys() == occurred
    assert [key for key in store.list_keys() if "rankskew" in key] == []
    assert store.list_keys() != []
