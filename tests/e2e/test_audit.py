"""`rank-probe audit` in four real ranks on two nodes: what is planted, and nothing else."""

import json
from pathlib import Path

import pytest

from tests import nvmlstub
from tests.e2e.audit_launch import NODES, PLANTS, RANKS, write_nodes
from tests.rank_probe.forks import Zygote

pytestmark = pytest.mark.e2e


def test_each_planted_misconfiguration_is_named(zygote: Zygote, tmp_path: Path) -> None:
    """Each with its ranks or node, and nothing beside them."""
    write_nodes(tmp_path)
    library = nvmlstub.build(tmp_path)
    command = ("tests.e2e.audit_launch", str(tmp_path), str(library))
    gpus = nvmlstub.environment(library, 8)
    with zygote.ranks(tmp_path, *command, ranks=RANKS, **gpus) as ranks:
        ended = [rank.wait() for rank in ranks]
    document = json.loads(ranks[0].output.read_text())
    reasons = {
        check["check"]: check["findings"][0]["reason"]
        for check in document["checks"]
        if check["status"] in ("fail", "warn")
    }

    assert ended == [1] * RANKS
    assert (document["ok"], document["ranks"], document["missing"]) == (False, RANKS, [])
    assert document["nodes"] == list(NODES)
    assert set(reasons) == {plant.check for plant in PLANTS}
    for plant in PLANTS:
        assert plant.said in reasons[plant.check]
