"""A job as the exporters of its nodes see it, from each one's live summary."""

from typing import Any

import pytest

from exporter.client.fetch import Trouble
from exporter.diagnose.from_exporter import read_exporters
from exporter.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell, Report
from exporter.top.model import NO_RANK
from tests.exporter.client.servers import exporter_of
from tests.exporter.top import documents
from tests.exporter.top.documents import hung, job, late, live, rank, straggler


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


def test_late_rank_is_told_by_its_stage() -> None:
    """Its time in each stage against its peers', and what to do with its process."""
    said = ask(live(straggler()))
    (finding,) = said.findings

    assert (said.outcome, said.state) == (FOUND, "straggler")
    assert (finding.rank, finding.stage, finding.cause, finding.confidence) == (
        2,
        "data",
        "input",
        "low",
    )
    assert [(each.name, each.value, each.peers) for each in finding.figures] == [
        ("data, a step", 0.18, 0.02)
    ]
    assert finding.first == "`py-spy dump --pid 4002`, then `iostat -x 1` on node1"
    assert said.loss is not None
    assert said.loss.gpus == pytest.approx(1.94)


def late_on_gpu() -> dict[str, Any]:
    return straggler(late=[late(2, stage="backward", ratio=0.4)])


@pytest.mark.parametrize(
    ("reading", "cause", "detail"),
    [
        ({"sm_clock_hertz": 1.41e9}, "slow_device", "clocks"),
        ({"foreign_processes": 1}, "foreign_process", None),
        ({"pcie_link_width": 4}, "slow_device", "pcie_link"),
        ({"sm_clock_hertz": 1.8e9}, "unknown", None),
        ({}, "unknown", None),
    ],
)
def test_gpu_is_evidence(reading: dict[str, Any], cause: str, detail: str | None) -> None:
    """A clock that is a tenth lower does not explain a rank that is two fifths slower."""
    (finding,) = ask(with_gpus(live(late_on_gpu()), **reading)).findings

    assert (finding.cause, finding.detail) == (cause, detail)
    assert finding.confidence == ("low" if cause == "unknown" else "high")


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
