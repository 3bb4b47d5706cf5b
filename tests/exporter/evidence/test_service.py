"""Late ranks of this node are explained from what is known of them and of their peers."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.causes.model import UNKNOWN, Cause, ThreadState
from exporter.evidence.late_causes import Place
from tests.exporter.evidence.node import FIRST_PID, FakeExplain, FakeNode
from tests.exporter.snapshots import late, verdict

HOT = Cause("slow_device", "clocks", 0.9, "hot", "`nvidia-smi -i UUID` on NODE")
NOT_KNOWN = Cause(UNKNOWN, "", 0.0, "not known", "`py-spy dump --pid PID`")


def judged(*ranks: int, **changes: Any) -> dict[str, Any]:
    """Return what ranks repeat while these are late."""
    known = {"stage": "forward", "since_seconds": 20.0, "peer_group": "all", **changes}
    found = tuple(late(rank=rank, **known) for rank in ranks)
    return {"verdict": verdict(late=found), "verdict_age_seconds": 0.0}


def node(ranks: int = 4, cause: Cause | None = HOT, gpus: int | None = None) -> FakeNode:
    """Return a node that has run for a minute."""
    found = FakeNode(ranks, ranks if gpus is None else gpus, FakeExplain(cause))
    found.run(60)
    return found


def test_node_without_ranks_explains_nothing() -> None:
    """No rank, no late rank, no verdict: no cause, and no hurry."""
    for ranks in (0, 4):
        quiet = node(ranks)

        assert quiet.causes.all() == {}
        assert quiet.explain.cases == []
        assert not quiet.host.hurried


def test_late_rank_is_explained_where_it_is() -> None:
    """With its GPU, its process and its node; nobody else has a cause."""
    found = node()
    found.run(3, **judged(2, 9))
    told = found.causes.all()

    assert told.keys() == {("llama", 2)}
    assert told["llama", 2].place == Place("all", "node-7", "2", "GPU-2", str(FIRST_PID + 2))
    assert told["llama", 2].cause.first_action == "`nvidia-smi -i GPU-2` on node-7"


def test_late_rank_without_a_gpu_is_explained_too() -> None:
    """Its process is the one that it says itself, if this exporter does not see it."""
    found = node(gpus=0)
    found.host.hidden = {2}
    found.ranks[2] = replace(found.ranks[2], pid=7, rank_info={})
    found.run(3, **judged(2))

    assert found.causes.all()["llama", 2].place == Place("all", "node-7", "", "", "7")


@pytest.mark.parametrize(("kind", "is_told"), [("pauses", True), ("node", True), ("mild", False)])
def test_only_kinds_that_are_named_are_explained(kind: str, is_told: bool) -> None:
    """A rank that is within the noise of a healthy job needs no cause."""
    found = node()
    found.run(3, **judged(2, kind=kind))

    assert bool(found.causes.all()) is is_told


def test_evidence_is_of_the_time_since_the_onset() -> None:
    """What a GPU did before its rank was late does not count."""
    found = node()
    found.gpus[2] = replace(found.gpus[2], sm_clock_megahertz=1_400)
    for second in range(20):
        found.run(1, **judged(2, since_seconds=float(second)))
    late, evidence, peers = found.explain.cases[-1]

    assert (late.stage, late.kind, late.ratio) == ("forward", "persistent", 0.45)
    assert evidence.figures["sm_clock_hertz"] == pytest.approx(1.4e9)
    assert peers["sm_clock_hertz"].median == pytest.approx(1.9e9)


def test_states_and_workers_come_along() -> None:
    """What its main thread does, as the rank says."""
    found = node()
    state = {"stage": "forward", "state": "lock", "share": 0.5, "place": "f (a.py:1)"}
    found.run(3, **judged(2), thread_states=[state])
    _, evidence, _ = found.explain.cases[-1]

    assert evidence.states == [ThreadState("forward", "lock", 0.5, "f (a.py:1)")]
    assert evidence.worker_states == ()


def test_peers_of_the_join_come_before_those_of_the_node() -> None:
    """A figure that the join does not carry is still held against the ranks here."""
    found = node()
    found.run(3, **judged(2), peer_figures={"sm_clock_hertz": [1.0, 2.0, 3.0]})
    _, _, peers = found.explain.cases[-1]

    assert peers["sm_clock_hertz"] == (1.0, 2.0, 3.0)
    assert peers["main_running_ratio"].median == pytest.approx(0.5)


def test_late_rank_that_is_alone_has_no_peers() -> None:
    """It is explained by what can be known without them."""
    found = node(1)
    found.run(3, **judged(0))

    assert found.explain.cases[-1][2] == {}
    assert found.causes.of("llama", 0) is not None


@pytest.mark.parametrize("away", ["late", "other_group", "other_job", "silent", "finished"])
def test_only_healthy_ranks_of_its_group_are_peers(away: str) -> None:
    """Not late ones, those of another part of the model or another job, and those that ended."""
    found = node(2)
    changes: dict[str, dict[str, Any]] = {
        "other_group": {"peer_group": "pp1"},
        "other_job": {"job_id": "other"},
        "finished": {"finished": True},
    }
    found.ranks[1] = replace(found.ranks[1], **changes.get(away, {}))
    if away == "silent":
        del found.ranks[1]
    found.run(11)
    found.run(3, **judged(*((0, 1) if away == "late" else (0,))))

    of_rank_0 = [peers for late, _, peers in found.explain.cases]
    assert of_rank_0
    assert all(peers == {} for peers in of_rank_0)


def test_rank_that_is_late_no_more_has_no_cause() -> None:
    """As soon as the judge says so."""
    found = node()
    found.run(3, **judged(2))
    assert found.host.hurried
    found.run(1, **judged())

    assert found.causes.all() == {}
    assert not found.host.hurried


def test_young_incident_is_not_unknown() -> None:
    """There is evidence of a few seconds only; with ten it is unknown."""
    found = node(cause=NOT_KNOWN)
    said = []
    for second in range(20):
        found.run(1, **judged(2, since_seconds=float(second)))
        said.append(found.causes.of("llama", 2) is not None)

    assert said[:10] == [False] * 10
    assert said[14:] == [True] * 6


def test_rank_that_restarts_while_it_is_late_is_not_unknown_at_once() -> None:
    """What its former process did is no evidence on this one."""
    found = node(cause=NOT_KNOWN)
    found.restart(2)
    found.run(9, **judged(2, since_seconds=60.0))
    assert found.causes.of("llama", 2) is None
    found.run(5, **judged(2, since_seconds=60.0))

    assert found.causes.of("llama", 2) is not None


def test_rank_is_told_its_figures_every_ten_seconds() -> None:
    """Those of the last half minute that have a place in the join, in six digits."""
    found = FakeNode(2, 2)
    found.run(8)
    found.told[1].clear()
    found.gpus[1] = replace(found.gpus[1], sm_clock_megahertz=1_400)
    found.run(60)
    figures = found.told[1]

    assert len(figures) == 6
    assert figures[-1]["sm_clock_hertz"] == 1.4e9
    assert figures[-1]["data_seconds"] == 0.05


def test_rank_that_is_new_is_told_nothing() -> None:
    """There is nothing to tell yet."""
    found = FakeNode(2, 2)
    found.run(1)

    assert found.told == {0: [], 1: []}


def test_rank_that_has_restarted_is_not_told_what_its_former_process_did() -> None:
    """The figures were made before it came; it gets its own with the next."""
    found = FakeNode(1, 1)
    found.run(21)  # They are made after the push of this second.
    before = len(found.told[0])
    found.restart(0)
    found.run(2)
    assert len(found.told[0]) == before
    found.run(10)

    assert len(found.told[0]) == before + 1


def test_rank_that_the_store_does_not_hold_is_told_nothing() -> None:
    """It came from a process that a newer one has replaced."""
    found = node(1)
    stray = replace(found.ranks[0], job_id="other")

    assert found.service.figures_for(stray) is None
