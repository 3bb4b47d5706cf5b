"""A job as the exporters of its nodes see it, from each one's live summary."""

from typing import Any

import pytest

from rankskew.client.fetch import Trouble
from rankskew.diagnose.from_exporter import read_exporters
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell, Report
from rankskew.top.model import NO_RANK
from tests.rankskew.client.servers import exporter_of
from tests.rankskew.top import documents
from tests.rankskew.top.documents import hung, job, late, live, rank, straggler


def ask(document: Any, job_id: str | None = None) -> Report:
    with exporter_of(document) as url:
        return read_exporters([url], job_id)


def gpu(number: int, **changes: Any) -> dict[str, Any]:
    """Return a GPU as the live summary has it."""
    return {
        "gpu": number,
        "gpu_uuid": f"GPU-{number}",
        "up": True,
        "sm_clock_hertz": 1.98e9,
        "throttle_reasons": [],
        "pcie_link_width": 16,
        "pcie_link_width_max": 16,
        "foreign_processes": 0,
        "ranks": [{"job_id": "llama", "rank": number}],
    } | changes


def with_gpus(document: dict[str, Any], **of_rank_2: Any) -> dict[str, Any]:
    changes = [of_rank_2 if number == 2 else {} for number in range(4)]
    return document | {"gpus": [gpu(number, **each) for number, each in enumerate(changes)]}


CAUSE: dict[str, Any] = {
    "cause": "input",
    "detail": "reads",
    "share": 0.83,
    "sentence": "it reads 240 MB/s, its peers 2",
    "first_action": "`iotop -p 4002` on node1",
    "figure": "read_bytes_per_second",
    "value": 240e6,
    "peers_value": 2e6,
    "unit": "bytes_per_second",
    "others": [{"cause": "gc", "detail": "", "share": 0.1, "sentence": "garbage collection"}],
}


def test_late_rank_has_the_cause_that_its_exporter_tells() -> None:
    """Nothing is derived here: sentence, share, figures and what to do first are repeated."""
    said = ask(live(straggler(late=[late(2, cause=CAUSE)])))
    (finding,) = said.findings

    assert (said.outcome, said.state) == (FOUND, "straggler")
    assert (finding.rank, finding.stage, finding.what) == (2, "data", "input")
    assert (finding.cause, finding.detail, finding.explains) == ("input", "reads", 0.83)
    assert finding.cause_text == "it reads 240 MB/s, its peers 2"
    assert (finding.value, finding.peers_value) == (240e6, 2e6)
    assert finding.others == ("garbage collection (10%)",)
    assert finding.first == "`iotop -p 4002` on node1"
    assert said.loss is not None
    assert said.loss.gpus == pytest.approx(1.94)


@pytest.mark.parametrize("cause", [None, {}, "input", {"cause": None}])
def test_late_rank_without_a_cause(cause: Any) -> None:
    """An exporter that does not know it yet, or is older."""
    (finding,) = ask(live(straggler(late=[late(2, cause=cause)]))).findings

    assert (finding.what, finding.cause, finding.explains) == ("unknown", "unknown", None)
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

    assert [(each.rank, each.cause, each.place.node) for each in found] == [
        (2, "input", "node1"),
        (6, "gc", "node2"),
    ]


def test_lines_of_code_are_told() -> None:
    """Those that the exporter of its node has sampled."""
    line = {"stage": "data", "place": "Corpus.read (corpus.py:41)", "share": 0.87}
    ranks = [rank(each, late_lines=[line] if each == 2 else []) for each in range(4)]
    (finding,) = ask(live(straggler(ranks=ranks))).findings

    assert [(each.place, each.share) for each in finding.lines] == [(line["place"], 0.87)]


def test_ranks_of_a_slow_node_are_one_finding() -> None:
    """With what they cost together."""
    those = [late(each, kind="node", gpus_lost=0.5, stage="forward") for each in range(4)]
    (finding,) = ask(live(straggler(late=those))).findings

    assert (finding.rank, finding.ranks, finding.gpus_lost) == (None, (0, 1, 2, 3), 2.0)
    assert finding.place.node == "node1"


def test_hung_job_names_the_rank_to_look_at() -> None:
    """All GPUs are lost; the stack of that rank comes first."""
    said = ask(live(hung()))
    (finding,) = said.findings

    assert (finding.what, finding.rank, finding.stage) == ("hung", 1, "backward")
    assert finding.first == "`py-spy dump --pid 4001` on node1, before you kill anything"
    assert said.loss is not None
    assert said.loss.gpus == 8.0


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
    """What it is, and whether anything could be told."""
    said = ask(live(job("llama", state, **changes)))

    assert [finding.what for finding in said.findings] == ([what] if what else [])
    assert said.outcome == outcome


def test_silent_rank_is_looked_for() -> None:
    """Is its process alive?"""
    ranks = [rank(each, silent=each == 3) for each in range(4)]
    (finding,) = ask(live(job("llama", "ranks_missing", ranks=ranks))).findings

    assert (finding.what, finding.first) == (
        "ranks_silent",
        "`ps -p 4003`, then `dmesg -T` on node1",
    )


def test_gpu_that_is_lost_is_a_finding() -> None:
    """Even if its rank still waits."""
    said = ask(with_gpus(live(job("llama")), up=False))

    assert [(each.what, each.rank) for each in said.findings] == [("gpu_lost", 2)]


def test_job_that_became_slower_is_told() -> None:
    """The judge compares a peer group with its own past."""
    change = {"peer_group": "all", "stage": "data", "ratio": 1.4, "since_seconds": 720.0}
    said = ask(live(job("llama", changes=[change], details=["In other words."])))

    sentence = "Data of peer group all has taken 1.4 times as long as before for 12 min."
    assert [(each.what, each.sentence) for each in said.findings] == [("slower", sentence)]


def test_losses_are_those_of_the_verdict_that_is_told() -> None:
    """Nodes repeat verdicts of different ages in the same words; the newest one's losses count."""
    here = [job("llama", gpus_lost={"common": lost}) for lost in (4.0, 2.0)]
    documents = [live(each) | {"timestamp_seconds": at} for at, each in enumerate(here)]
    with exporter_of(documents[0]) as old, exporter_of(documents[1]) as new:
        said = read_exporters([old, new], None)

    assert said.loss is not None
    assert said.loss.gpus == 2.0


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


def test_what_cannot_be_told_is_one_sentence() -> None:
    """No job, several, or not that one."""
    with pytest.raises(CannotTell, match="No rank has reported yet"):
        ask(live())
    assert NO_RANK.startswith("No rank has reported yet")
    with pytest.raises(CannotTell, match=r"There are 2 jobs; name one with --job: a, b\."):
        ask(live(job("b"), job("a")))
    with pytest.raises(CannotTell, match=r"There is no job 'c'; there are: a, b\."):
        ask(live(job("b"), job("a")), "c")
    assert ask(live(job("b"), documents.job("a")), "a").job_id == "a"
