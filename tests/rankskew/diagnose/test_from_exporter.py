"""A job as the exporters of its nodes see it, from each one's live summary."""

from dataclasses import asdict
from typing import Any

import pytest

from rankskew.client.fetch import Trouble
from rankskew.diagnose.findings import NO_CAUSE
from rankskew.diagnose.from_exporter import read_exporters
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell, Report
from tests.rankskew.client.servers import exporter_of
from tests.rankskew.top.documents import CAUSE, hung, job, late, live, rank, straggler


def ask(document: Any, job_id: str | None = None) -> Report:
    with exporter_of(document) as url:
        return read_exporters([url], job_id)


def gpu(number: int, up: bool) -> dict[str, Any]:
    readings = (
        *("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts"),
        *("temperature_celsius", "sm_clock_hertz", "pcie_link_width", "pcie_link_width_max"),
    )
    return {
        **dict.fromkeys((*readings, "foreign_processes")),
        **{"gpu": number, "gpu_uuid": f"GPU-{number}", "name": "H100", "up": up},
        "throttle_reasons": [],
        "ranks": [{"job_id": "llama", "rank": number}],
    }


def test_late_rank_has_the_cause_that_its_exporter_tells() -> None:
    """Nothing is derived here: sentence, share, figures and what to do first are repeated."""
    said = ask(live(straggler(late=[late(2, cause=CAUSE)])))
    (finding,) = said.findings

    assert (said.outcome, said.state) == (FOUND, "straggler")
    assert (finding.rank, finding.stage, finding.what) == (2, "data", "input")
    assert finding.cause is not None
    assert asdict(finding.cause) == CAUSE
    assert finding.first == "`iotop -p 4002` on node1"
    assert said.loss is not None
    assert said.loss.gpus == pytest.approx(1.94)


def test_loss_of_a_rank_is_divided_among_its_stages() -> None:
    """As its exporter divides it; all in the stage where it began if that does not say."""
    stages = {"backward": 1.2, "forward": 0.6, "optimizer": 0.1}

    def parts(**told: Any) -> dict[str, float]:
        loss = ask(live(straggler(late=[late(2, stage="backward", **told)]))).loss
        assert loss is not None
        (rank_2,) = loss.parts[0].parts
        return {part.name: round(part.gpus, 2) for part in rank_2.parts}

    assert parts(gpus_by_stage=stages) == stages
    assert parts() == parts(gpus_by_stage="x") == {"backward": 1.9}


@pytest.mark.parametrize("cause", [None, {}, "input", {"cause": None}])
def test_late_rank_without_a_cause(cause: Any) -> None:
    (finding,) = ask(live(straggler(late=[late(2, cause=cause)]))).findings

    assert (finding.what, finding.cause) == ("unknown", NO_CAUSE)
    assert finding.first is not None
    assert "py-spy dump --pid 4002" in finding.first


def test_cause_is_known_on_the_node_of_the_rank() -> None:
    """Each exporter explains its own late ranks, and all name both."""
    first = [late(2, cause=CAUSE), late(6, gpus_lost=1.0, is_here=False)]
    other = CAUSE | {"cause": "gc", "detail": "", "first_action": "look"}
    second = [late(2, is_here=False), late(6, gpus_lost=1.0, cause=other)]
    with (
        exporter_of(live(straggler(late=first))) as one,
        exporter_of(live(straggler(late=second, ranks=[rank(6, "node2")]), host="node2")) as two,
    ):
        found = read_exporters([one, two], None).findings

    assert [(each.rank, each.what, each.place.node) for each in found] == [
        (2, "input", "node1"),
        (6, "gc", "node2"),
    ]


def test_ranks_of_a_slow_node_are_one_finding() -> None:
    """With what they cost together, and the lines of code that the exporter has sampled."""
    line = {"stage": "forward", "place": "Corpus.read (corpus.py:41)", "share": 0.87}
    those = [late(each, kind="node", gpus_lost=0.5, stage="forward") for each in range(4)]
    ranks = [rank(each, late_lines=[line] if each == 2 else []) for each in range(4)]
    (finding,) = ask(live(straggler(late=those, ranks=ranks))).findings

    assert (finding.rank, finding.ranks, finding.gpus_lost) == (None, (0, 1, 2, 3), 2.0)
    assert finding.place.node == "node1"
    assert [(each.place, each.share) for each in finding.lines] == [(line["place"], 0.87)]


@pytest.mark.parametrize(
    ("kind", "node", "spans", "sentence"),
    [
        ("persistent", "node1", [[4, 7]], "4 of 8 ranks (4 to 7: all of rack r12, and no others)"),
        ("node", "node1", [[4, 7]], "4 of 8 ranks (4 to 7: all of rack r12, and no others)"),
        ("node", None, [[4, 7]], "4 of 8 ranks (4 to 7: all of rack r12, and no others)"),
        # Of an exporter that has another idea of a set.
        ("persistent", "node1", None, None),
    ],
    ids=["one node", "slow node", "two nodes", "no set"],
)
def test_ranks_that_became_late_together_are_one_finding(
    kind: str, node: str | None, spans: list[list[int]] | None, sentence: str | None
) -> None:
    """In the words of the page; where they are on several nodes, it names none."""
    set_of = {"stage": "data", "ranks": 4, "since_seconds": 240.0, "in_common": "rack r12"}
    those = [late(each, kind=kind, cause=CAUSE) for each in range(4, 8)]
    ranks = [rank(each, node or f"node{each}") for each in range(4, 8)]
    alone = late(1, gpus_lost=0.1)
    document = straggler(late=[alone, *those], together=[set_of | {"spans": spans}], ranks=ranks)
    found = ask(live(document)).findings

    if sentence is None:
        assert [each.rank for each in found] == [4, 5, 6, 7]
        return
    (finding,) = found
    assert finding.sentence == (
        f"{sentence} have been slow loading data for 4 min; 7.60 of 8 GPUs wait for them."
    )
    assert (finding.rank, finding.ranks, finding.what) == (None, (4, 5, 6, 7), "input")
    assert (finding.place.node, finding.place.pid) == (node, None)


def test_set_that_costs_less_is_named_as_a_set() -> None:
    set_of = {"stage": "data", "ranks": 2, "since_seconds": 9.0, "spans": [[6, 7]]}
    those = [late(each, gpus_lost=0.05) for each in (6, 7)]
    said = ask(live(straggler(late=[late(2), *those], together=[set_of, {"ranks": "x"}])))

    assert said.more[0].startswith("Late as well: 2 ranks (6 and 7).")


SILENT = [rank(each, silent=each == 3) for each in range(4)]
HUNG = "`py-spy dump --pid 4001` on node1, before you kill anything"


@pytest.mark.parametrize(
    ("document", "what", "of", "first"),
    [
        (live(hung()), "hung", 1, HUNG),
        (
            live(job("llama", "ranks_missing", ranks=SILENT)),
            *("ranks_silent", 3, "`ps -p 4003`, then `dmesg -T` on node1"),
        ),
        # Even if its rank still waits.
        (live(job("llama")) | {"gpus": [gpu(1, True), gpu(2, False)]}, "gpu_lost", 2, None),
    ],
    ids=["hung", "silent", "GPU lost"],
)
def test_rank_to_look_at_is_named(
    document: dict[str, Any], what: str, of: int, first: str | None
) -> None:
    """The stack of the rank that a hung job waits for comes first."""
    said = ask(document)
    (finding,) = said.findings

    assert (finding.what, finding.rank) == (what, of)
    assert first in (None, finding.first)
    if what == "hung":
        assert said.loss is not None
        assert (finding.stage, said.loss.gpus) == ("backward", 8.0)


@pytest.mark.parametrize(
    ("state", "changes", "what", "outcome"),
    [
        ("healthy", {}, None, BALANCED),
        ("healthy", {"gpus_lost": {"common": 4.0}}, "common", FOUND),
        ("rotating", {"gpus_lost": {"rotating": 2.0}}, "rotating", FOUND),
        ("ranks_missing", {}, "ranks_missing", FOUND),
        ("starting", {}, "starting", CANNOT_TELL),
        ("starting", {"alert": "RankskewSlowStart"}, "slow_start", FOUND),
        ("not_judgeable", {"reason": "no_sync"}, "no_sync", CANNOT_TELL),
        ("not_judgeable", {"reason": "of_a_newer_release"}, "no_join", CANNOT_TELL),
        ("no_probe", {}, "no_probe", CANNOT_TELL),
        ("finished", {}, "finished", CANNOT_TELL),
    ],
)
def test_every_other_state(
    state: str, changes: dict[str, Any], what: str | None, outcome: str
) -> None:
    said = ask(live(job("llama", state, **changes)))

    assert [finding.what for finding in said.findings] == ([what] if what else [])
    assert said.outcome == outcome


CHANGE: dict[str, Any] = {
    "peer_group": "all",
    "stage": "data",
    "ratio": 1.4,
    "since_seconds": 720.0,
}
LONGER = "has taken 1.40 times as long as before for 12 min."
WHY = CAUSE | {"sentence": "reads take 9 ms"}


@pytest.mark.parametrize(
    ("more", "causes", "sentence", "facts"),
    [
        ({}, [], f"Data of peer group all {LONGER}", ()),
        ({}, [WHY], f"Data of peer group all {LONGER}", ("Cause on node1: reads take 9 ms.",)),
        ({}, [None], f"Data of peer group all {LONGER}", ()),
        ({}, "of another release", f"Data of peer group all {LONGER}", ()),
        (
            {"slower": 5, "peers": 8, "slower_spans": [[0, 4], [7], "8"], "in_common": "rack r12"},
            [],
            "5 of 8 ranks of peer group all (0 to 4: all of rack r12, and no others) became slower "
            f"together: data {LONGER}",
            (),
        ),
    ],
)
def test_job_that_became_slower_is_told(
    more: dict[str, Any], causes: Any, sentence: str, facts: tuple[str, ...]
) -> None:
    """The judge compares a peer group with its own past; a node that knows why is repeated.

    What another release says otherwise is left out.
    """
    (found,) = ask(live(job("llama", changes=[CHANGE | more], change_causes=causes))).findings

    assert (found.what, found.sentence, found.facts) == ("slower", sentence, facts)


def test_exporter_that_does_not_answer_is_told() -> None:
    """What the others say is reported all the same; with none there is no report."""
    with exporter_of(live()) as dead:
        pass
    with exporter_of(live(straggler())) as url:
        said = read_exporters([url, dead], None)

    assert said.findings[0].rank == 2
    assert f"{dead} does not answer: Connection refused." in said.unjudged
    with pytest.raises(Trouble, match="does not answer"):
        read_exporters([dead], None)


@pytest.mark.parametrize(
    ("jobs", "job_id", "problem"),
    [
        ([], None, "No rank has reported yet"),
        ([job("b"), job("a")], None, r"There are 2 jobs; name one with --job: a, b\."),
        ([job("b"), job("a")], "c", r"There is no job 'c'; there are: a, b\."),
    ],
)
def test_what_cannot_be_told_is_one_sentence(
    jobs: list[dict[str, Any]], job_id: str | None, problem: str
) -> None:
    with pytest.raises(CannotTell, match=problem):
        ask(live(*jobs), job_id)
