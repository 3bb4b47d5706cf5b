"""What `top` and `diagnose` make of the live summaries of exporters, of this release or others."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pytest

from rankskew.client.fetch import Trouble
from rankskew.diagnose import from_exporter as diagnose
from rankskew.diagnose.findings import NO_CAUSE
from rankskew.diagnose.model import BALANCED, CANNOT_TELL, FOUND, CannotTell, Report
from rankskew.top.from_exporter import merged, read_document, read_exporters
from rankskew.top.model import NO_RANK, UNKNOWN, JobStatus
from tests.rankskew.documents import CAUSE, SLOW_DATA, hung, job, late, live, rank, straggler
from tests.rankskew.servers import Answer, exporter_of, json_answer, serving

URL = "http://node1:9917"


def only(*documents: object) -> JobStatus:
    """Return the one job that *documents* of several nodes show."""
    sent = [json.loads(json.dumps(document)) for document in documents]
    (found,) = merged(read_document(document, URL) for document in sent)
    return found


def diagnosed(*documents: Any, job_id: str | None = None) -> Report:
    """Return the report on what the exporters of several nodes serve."""
    with ExitStack() as servers:
        urls = [servers.enter_context(exporter_of(document)) for document in documents]
        return diagnose.read_exporters(urls, job_id)


# ---- Late ranks ----------------------------------------------------------------------------------


def test_late_rank_has_the_cause_that_its_exporter_tells() -> None:
    """Nothing is derived here: sentence, share, figures and what to do first are repeated."""
    said = diagnosed(live(straggler(late=[late(2, cause=CAUSE)])))
    (finding,) = said.findings

    assert (said.outcome, said.state) == (FOUND, "straggler")
    assert (finding.rank, finding.stage, finding.what) == (2, "data", "input")
    assert finding.cause is not None
    assert asdict(finding.cause) == CAUSE
    assert finding.first == "`iotop -p 4002` on node1"
    assert said.loss is not None
    assert said.loss.gpus == pytest.approx(1.94)


@pytest.mark.parametrize(
    ("changes", "details", "told"),
    [
        ({}, ["Cause: it reads 240 MB/s, its peers 2."], "Cause: it reads 240 MB/s, its peers 2."),
        (
            {"cause": "unknown", "detail": "", "share": 0.0, "sentence": "nothing explains it"},
            [],
            "Cause unknown: nothing explains it.",
        ),
    ],
    ids=["in the details of the page", "not known"],
)
def test_cause_is_said_once(changes: dict[str, object], details: list[str], told: str) -> None:
    found = only(live(straggler(late=[late(2, cause=CAUSE | changes)], details=details)))

    assert list(found.details) == [told]


@pytest.mark.parametrize("cause", [None, {}, "input", {"cause": None}])
def test_late_rank_without_a_cause(cause: Any) -> None:
    """One that costs too little, by the definition of the rules, is not told at all."""
    (finding,) = diagnosed(live(straggler(late=[late(2, cause=cause)]))).findings

    assert (finding.what, finding.cause) == ("unknown", NO_CAUSE)
    assert "py-spy dump --pid 4002" in str(finding.first)
    cheap = live(job("llama", late=[late(2, cause=cause, costs_enough=False)]))
    assert (only(cheap).culprit, diagnosed(cheap).findings) == (None, ())


def test_loss_of_a_rank_is_divided_among_its_stages() -> None:
    """As its exporter divides it; all in the stage where it began if that does not say."""
    stages = {"backward": 1.2, "forward": 0.6, "optimizer": 0.1}

    def parts(**told: Any) -> dict[str, float]:
        loss = diagnosed(live(straggler(late=[late(2, stage="backward", **told)]))).loss
        assert loss is not None
        (rank_2,) = loss.parts[0].parts
        return {part.name: round(part.gpus, 2) for part in rank_2.parts}

    assert parts(gpus_by_stage=stages) == stages
    assert parts() == parts(gpus_by_stage="x") == {"backward": 1.9}


def test_ranks_of_a_slow_node_are_one_finding() -> None:
    """With what they cost together, and the lines of code that the exporter has sampled."""
    line = {"stage": "forward", "place": "Corpus.read (corpus.py:41)", "share": 0.87}
    those = [late(each, kind="node", gpus_lost=0.5, stage="forward") for each in range(4)]
    ranks = [rank(each, late_lines=[line] if each == 2 else []) for each in range(4)]
    (finding,) = diagnosed(live(straggler(late=those, ranks=ranks))).findings

    assert (finding.rank, finding.ranks, finding.gpus_lost) == (None, (0, 1, 2, 3), 2.0)
    assert finding.place.node == "node1"
    assert [(each.place, each.share) for each in finding.lines] == [(line["place"], 0.87)]


@pytest.mark.parametrize(
    ("kind", "node", "spans"),
    [
        ("persistent", "node1", [[4, 7]]),
        ("node", "node1", [[4, 7]]),
        ("node", None, [[4, 7]]),
        # Of an exporter that has another idea of a set.
        ("persistent", "node1", None),
    ],
    ids=["one node", "slow node", "two nodes", "no set"],
)
def test_ranks_that_became_late_together_are_one_finding(
    kind: str, node: str | None, spans: list[list[int]] | None
) -> None:
    """In the words of the page; where they are on several nodes, it names none."""
    set_of = {"stage": "data", "ranks": 4, "since_seconds": 240.0, "in_common": "rack r12"}
    those = [late(each, kind=kind, cause=CAUSE) for each in range(4, 8)]
    ranks = [rank(each, node or f"node{each}") for each in range(4, 8)]
    alone = late(1, gpus_lost=0.1)
    document = straggler(late=[alone, *those], together=[set_of | {"spans": spans}], ranks=ranks)
    found = diagnosed(live(document)).findings

    if spans is None:
        assert [each.rank for each in found] == [4, 5, 6, 7]
        return
    (finding,) = found
    assert finding.sentence == (
        "4 of 8 ranks (4 to 7: all of rack r12, and no others) have been slow loading data for "
        "4 min; 7.60 of 8 GPUs wait for them."
    )
    assert (finding.rank, finding.ranks, finding.what) == (None, (4, 5, 6, 7), "input")
    assert (finding.place.node, finding.place.pid) == (node, None)


def test_set_that_costs_less_is_named_as_a_set() -> None:
    set_of = {"stage": "data", "ranks": 2, "since_seconds": 9.0, "spans": [[6, 7]]}
    those = [late(each, gpus_lost=0.05) for each in (6, 7)]
    said = diagnosed(live(straggler(late=[late(2), *those], together=[set_of, {"ranks": "x"}])))

    assert said.more[0].startswith("Late as well: 2 ranks (6 and 7).")


# ---- Other states --------------------------------------------------------------------------------


STUCK: dict[str, Any] = {"last_step_age_seconds": 190.0, "stage": "sync"}
FROZEN = [rank(each, silent=each == 3, **STUCK) for each in range(4)]
SILENT = [rank(each, silent=each == 3) for each in range(4)]
NO_READINGS = dict.fromkeys(
    (
        *("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts"),
        *("temperature_celsius", "sm_clock_hertz", "pcie_link_width", "pcie_link_width_max"),
        "foreign_processes",
    )
)


def gpu(number: int, up: bool) -> dict[str, Any]:
    return {
        **NO_READINGS,
        **{"gpu": number, "gpu_uuid": f"GPU-{number}", "name": "H100", "up": up},
        "throttle_reasons": [],
        "ranks": [{"job_id": "llama", "rank": number}],
    }


@pytest.mark.parametrize(
    ("document", "culprit", "what", "of", "first"),
    [
        # The rank outside sync, or the one that reports no more, as the rules call its stage.
        (live(hung()), (1, "backward"), "hung", 1, "`py-spy dump --pid 4001` on node1, before"),
        (live(hung(ranks=FROZEN)), (3, "frozen"), "hung", 3, "`py-spy dump --pid 4003` on node1"),
        (
            live(job("llama", "ranks_missing", ranks=SILENT)),
            None,
            "ranks_silent",
            3,
            "`ps -p 4003`",
        ),
        # Even if its rank still waits.
        (
            live(job("llama")) | {"gpus": [gpu(1, up=True), gpu(2, up=False)]},
            None,
            "gpu_lost",
            2,
            "",
        ),
    ],
    ids=["hung", "frozen", "silent", "GPU lost"],
)
def test_rank_to_look_at_is_named(
    document: dict[str, Any], culprit: tuple[int, str] | None, what: str, of: int, first: str
) -> None:
    """By both; the stack of the rank that a hung job waits for comes first, and all GPUs wait."""
    found = only(document)
    said = diagnosed(document)
    (finding,) = said.findings

    assert found.culprit == culprit
    assert (finding.what, finding.rank) == (what, of)
    assert str(finding.first).startswith(first)
    if what == "hung":
        assert (found.gpus_lost, found.since_seconds) == (8, 190.0)
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
    said = diagnosed(live(job("llama", state, **changes)))

    assert [finding.what for finding in said.findings] == ([what] if what else [])
    assert said.outcome == outcome


CHANGE: dict[str, Any] = {
    "peer_group": "all",
    "stage": "data",
    "ratio": 1.4,
    "since_seconds": 720.0,
}
OF_SOME = {"slower": 5, "peers": 8, "slower_spans": [[0, 4], [7], "8"], "in_common": "rack r12"}
LONGER = "Data of peer group all has taken 1.40 times as long as before for 12 min."
LONGER_OF_SOME = (
    "5 of 8 ranks of peer group all (0 to 4: all of rack r12, and no others) became slower "
    "together: data has taken 1.40 times as long as before for 12 min."
)
WHY = CAUSE | {"sentence": "reads take 9 ms"}


@pytest.mark.parametrize(
    ("change", "causes", "sentence", "facts"),
    [
        (CHANGE, [], LONGER, ()),
        (CHANGE, [WHY], LONGER, ("Cause on node1: reads take 9 ms.",)),
        (CHANGE, [None], LONGER, ()),
        (CHANGE, "of another release", LONGER, ()),
        (CHANGE | OF_SOME, [], LONGER_OF_SOME, ()),
    ],
)
def test_job_that_became_slower_is_told(
    change: dict[str, Any], causes: Any, sentence: str, facts: tuple[str, ...]
) -> None:
    """The judge compares a peer group with its own past; a node that knows why is repeated."""
    (found,) = diagnosed(live(job("llama", changes=[change], change_causes=causes))).findings

    assert (found.what, found.sentence, found.facts) == ("slower", sentence, facts)


# ---- Several nodes -------------------------------------------------------------------------------


def test_several_nodes_make_one_job() -> None:
    """Ranks of all nodes are together, and the node that has the late rank tells, with its cause.

    A node without a name has its address; its exporter may know no PID or GPU.
    """
    here = straggler(late=[late(2, cause=CAUSE), late(6, gpus_lost=1.0, is_here=False)])
    gc = CAUSE | {"cause": "gc", "detail": "", "first_action": "look"}
    there = straggler(
        late=[late(2, is_here=False), late(6, gpus_lost=1.0, cause=gc)],
        sentence="Rank 2 (not on this node)",
        ranks=[rank(each, host="") for each in range(4, 8)],
    )
    for each in there["ranks"]:
        del each["pid"], each["gpu"]
    documents = live(there, host="", at=2000.0), live(here)
    found = only(*documents)
    causes = diagnosed(live(here), live(there, host="node2")).findings

    assert [each.rank for each in found.ranks] == list(range(8))
    assert found.ranks_seen == 8
    last = found.ranks[7]
    assert (last.node, last.pid, last.gpu) == ("node1:9917", None, None)
    assert [(each.rank, each.what, each.place.node) for each in causes] == [
        (2, "input", "node1"),
        (6, "gc", "node2"),
    ]


def test_most_telling_word_counts() -> None:
    """One node may see that its ranks are gone while another repeats an older verdict.

    And ranks of one node may have ended or not begun while the job is judged.
    """
    for telling, other in (
        *(("hung", "healthy"), ("ranks_missing", "healthy")),
        *(("straggler", little) for little in ("finished", "starting", "no_probe")),
    ):
        old, new = live(job("llama", telling), at=1.0), live(job("llama", other), at=2.0)
        assert only(old, new).state == telling


def test_newest_of_equal_words_counts() -> None:
    """The node with the late rank tells, else the newest; a rank is shown where it is alive."""
    dead = [rank(0, heartbeat_age_seconds=500.0, silent=True)]
    old = job("llama", slowdown=1.1, ranks=dead)
    new = job("llama", slowdown=1.2, ranks=[rank(0, "node2")])
    found = only(live(new, host="node2", at=2.0), live(old, at=1.0))
    elsewhere = straggler(late=[late(2, is_here=False)], sentence="Rank 2 (not on this node)")
    told = only(live(elsewhere, host="node2", at=2000.0), live(straggler()))

    assert (found.slowdown, [each.node for each in found.ranks]) == (1.2, ["node2"])
    assert told.sentence == "Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it."


def test_fleet_is_read_over_http() -> None:
    """Two exporters make one, the most urgent job first; what does not answer is said."""
    with exporter_of(live()) as dead:
        pass
    with exporter_of(live(job("calm"), straggler())) as one, exporter_of(live(hung())) as two:
        fleet = read_exporters([one, two, dead])
        told = diagnose.read_exporters([one, dead], "llama")
        with pytest.raises(Trouble, match="does not answer"):
            diagnose.read_exporters([dead], None)
    silent = f"{dead} does not answer: Connection refused."

    assert [each.job_id for each in fleet.jobs] == ["vision", "llama", "calm"]
    assert (fleet.troubles, fleet.focus) == ([silent], None)
    assert told.findings[0].rank == 2
    assert silent in told.unjudged


@pytest.mark.parametrize(
    ("jobs", "job_id", "shown", "trouble", "cannot_tell"),
    [
        pytest.param([straggler()], None, 1, None, None, id="the only job"),
        pytest.param([hung(), straggler()], "llama", 1, None, None, id="the one that is named"),
        pytest.param(
            *([hung(), straggler()], "lama", 0),
            *["There is no job 'lama'; there are: llama, vision."] * 2,
            id="no such job",
        ),
        pytest.param(
            *([hung(), straggler()], None, 2, None),
            "There are 2 jobs; name one with --job: llama, vision.",
            id="several jobs",
        ),
        pytest.param([], None, 0, NO_RANK, NO_RANK, id="no job yet"),
    ],
)
def test_one_job_is_in_focus(
    jobs: list[dict[str, Any]],
    job_id: str | None,
    shown: int,
    trouble: str | None,
    cannot_tell: str | None,
) -> None:
    """Its late rank comes first; `diagnose` can tell of no other."""
    with exporter_of(live(*jobs)) as url:
        fleet = read_exporters([url], job_id)
        if cannot_tell is None:
            assert diagnose.read_exporters([url], job_id).job_id == "llama"
        else:
            with pytest.raises(CannotTell) as said:
                diagnose.read_exporters([url], job_id)
            assert str(said.value) == cannot_tell

    assert fleet.troubles == ([trouble] if trouble else [])
    assert len(fleet.jobs) == shown
    if shown == 1:
        assert [each.rank for each in fleet.jobs[0].ranks] == [2, 0, 1, 3]


def test_huge_job_shows_its_worst_ranks() -> None:
    """Of a thousand ranks twenty have a row: the late one, then the slowest."""
    ranks = [
        rank(each, stage_seconds={"forward": 0.1 + each / 1e4, "sync": 0.1}) for each in range(1000)
    ]
    ranks[7] = rank(7, stage_seconds=SLOW_DATA)
    with exporter_of(live(straggler(late=[late(7)], ranks=ranks))) as url:
        (found,) = read_exporters([url]).jobs

    assert [each.rank for each in found.ranks][:3] == [7, 999, 998]
    assert (len(found.ranks), found.ranks_seen) == (20, 1000)


# ---- Other releases, and other programs ----------------------------------------------------------


@pytest.mark.parametrize(
    "nonsense", [None, [], "text", -1, {"rank": "x"}, [None, {}, {"rank": []}]]
)
def test_nonsense_in_a_field_is_nothing(nonsense: object) -> None:
    """Of an exporter of another release, the rest of the job is shown."""
    said = straggler(late=nonsense, gpus_lost=nonsense, together=nonsense, details=nonsense)
    said["ranks"] += [{"rank": nonsense}, nonsense, rank(8, last_event=nonsense)]
    found = only(live(said))

    assert (found.state, found.slowdown, len(found.late)) == ("straggler", 1.48, 0)
    assert [each.rank for each in found.ranks] == [0, 1, 2, 3, 8]


@pytest.mark.parametrize("missing", ["ranks", "verdict", "steps"])
def test_job_of_which_nothing_can_be_read_is_told(missing: str) -> None:
    """It would be no job otherwise, or a healthy one."""
    document = live(straggler(), job("calm"))
    del document["jobs"][0][missing]
    with pytest.raises(Trouble, match=f"{URL} is an exporter of another release"):
        only(document)


def test_text_cannot_move_the_cursor() -> None:
    """Escape sequences are question marks; a state of a later exporter ends nothing.

    A rank without the probe, known from its process on a GPU, has no last report and no stage.
    """
    unprobed = rank(0, stage="", heartbeat_age_seconds=0.0)
    with exporter_of(live(job("evil\x1b[2J\n", "levitating", ranks=[unprobed]))) as url:
        (found,) = read_exporters([url]).jobs

    assert (found.job_id, found.state) == ("evil?[2J?", UNKNOWN)
    assert (found.ranks[0].stage, found.ranks[0].report_age_seconds) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [
        (200, "text/html", b"<!doctype html><title>Directory listing</title>"),
        (404, "text/html", b"<h1>Error response</h1>"),  # python -m http.server
        json_answer({"detail": "Not Found"}, 404),
        *map(json_answer, (["a", "list"], None, {}, {"jobs": 1}, "html")),
        (200, "application/json", b"[" * 100_000),
    ],
)
def test_other_servers_are_no_exporters(answer: Answer) -> None:
    """HTML, other JSON and errors of other programs are named for what they are."""
    with serving(lambda sent: answer) as url:
        fleet = read_exporters([url])

    assert fleet.troubles == [
        f"{url} answers, but it is not a Rankskew exporter; --prometheus URL asks a Prometheus."
    ]
