"""What `top` and `diagnose` make of the live summaries of exporters, of this release or others."""

import json
from contextlib import ExitStack
from typing import Any, Final

import pytest

from rankskew.client.fetch import Trouble
from rankskew.diagnose import from_exporter as diagnose
from rankskew.diagnose.model import CannotTell
from rankskew.top.from_exporter import merged, read_document, read_exporters
from rankskew.top.model import NO_RANK, UNKNOWN, JobStatus
from tests.printed import assert_golden
from tests.rankskew.documents import CAUSE, SLOW_DATA, hung, job, late, live, rank, straggler
from tests.rankskew.servers import Answer, exporter_of, json_answer, serving
from tests.rankskew.views import both, drawn

URL = "http://node1:9917"
Document = dict[str, Any]


def only(*documents: Document) -> JobStatus:
    """Return the one job that *documents* of several nodes show."""
    sent = [json.loads(json.dumps(document)) for document in documents]
    (found,) = merged(read_document(document, URL) for document in sent)
    return found


def told(*documents: Document) -> str:
    """Return what both print of the only job of several nodes."""
    with ExitStack() as servers:
        urls = [servers.enter_context(exporter_of(document)) for document in documents]
        return both(read_exporters(urls), diagnose.read_exporters(urls, None))


# ---- One job -------------------------------------------------------------------------------------


def slow_node() -> Document:
    line = {"stage": "forward", "place": "Corpus.read (corpus.py:41)", "share": 0.87}
    those = [late(each, kind="node", gpus_lost=0.5, stage="forward") for each in range(4)]
    ranks = [rank(each, late_lines=[line] if each == 2 else []) for each in range(4)]
    return live(straggler(late=those, ranks=ranks))


def together(spans: Any, kind: str = "persistent", nodes: int = 1) -> Document:
    """Return a job of which four ranks became late together, and one alone."""
    set_of = {"stage": "data", "ranks": 4, "since_seconds": 240.0, "in_common": "rack r12"}
    those = [late(each, kind=kind, cause=CAUSE) for each in range(4, 8)]
    ranks = [rank(each, f"node{each % nodes}") for each in range(4, 8)]
    alone = late(1, gpus_lost=0.1)
    return live(straggler(late=[alone, *those], together=[set_of | {"spans": spans}], ranks=ranks))


def cheap_set() -> Document:
    set_of = {"stage": "data", "ranks": 2, "since_seconds": 9.0, "spans": [[6, 7]]}
    those = [late(each, gpus_lost=0.05) for each in (6, 7)]
    return live(straggler(late=[late(2), *those], together=[set_of, {"ranks": "x"}]))


def gpu(number: int, up: bool) -> dict[str, Any]:
    readings = (
        *("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "power_watts"),
        *("temperature_celsius", "sm_clock_hertz", "pcie_link_width", "pcie_link_width_max"),
        "foreign_processes",
    )
    return {
        **dict.fromkeys(readings),
        **{"gpu": number, "gpu_uuid": f"GPU-{number}", "name": "H100", "up": up},
        "throttle_reasons": [],
        "ranks": [{"job_id": "llama", "rank": number}],
    }


def slower(causes: Any = (), **of_some: Any) -> Document:
    """Return a job that the judge finds slower than in its own past; nodes may know why."""
    change = {"peer_group": "all", "stage": "data", "ratio": 1.4, "since_seconds": 720.0} | of_some
    return live(job("llama", changes=[change], change_causes=causes))


def of_state(state: str, **changes: Any) -> Document:
    return live(job("llama", state, **changes))


def nodes() -> tuple[Document, Document]:
    """Return a job on a node and on one without a name, each with a late rank and its cause."""
    gc = CAUSE | {"cause": "gc", "detail": "", "first_action": "look"}
    here = straggler(late=[late(2, cause=CAUSE), late(6, gpus_lost=1.0, is_here=False)])
    there = straggler(
        late=[late(2, is_here=False), late(6, gpus_lost=1.0, cause=gc)],
        sentence="Rank 2 (not on this node)",
        ranks=[rank(each, host="") for each in range(4, 8)],
    )
    for each in there["ranks"]:
        del each["pid"], each["gpu"]
    return live(here), live(there, host="node2", at=900.0)


SAID: Final = "Cause: it reads 240 MB/s, its peers 2."
STAGES: Final = {"backward": 1.2, "forward": 0.6, "optimizer": 0.1}
STUCK: Final[dict[str, Any]] = {"last_step_age_seconds": 190.0, "stage": "sync"}
GPU_7: Final = {"node": "gpu-7", "page": "http://gpu-7:9917/"}
WAITING: Final = [rank(each, **STUCK) for each in range(4)]
FROZEN: Final = [rank(each, silent=each == 3, **STUCK) for each in range(4)]
SILENT: Final = [rank(each, silent=each == 3) for each in range(4)]
SOME: Final = {"slower": 5, "peers": 8, "slower_spans": [[0, 4], [7], "8"], "in_common": "rack r12"}
BOUND, STARVED = "RankskewCommunicationBound", "RankskewInputStarvation"
HELD: Final = "another thread of its process holds the GIL for 180 ms a step: "
SAVES: Final = {"sentence": f"{HELD}thread `saver` at Saver.dump (train.py:88)"}
SAVES["first_action"] = "do its work in another process, or after the step on all ranks"
INTERPRETER: Final = {"cause": "code", "detail": "interpreter"} | SAVES
SLOW_READS: Final = CAUSE | {"sentence": "reads take 9 ms"}
STORIES: Final[dict[str, Document]] = {
    # What the page says already is not said twice.
    "late rank": live(straggler(late=[late(2, cause=CAUSE)])),
    "cause on the page": live(straggler(late=[late(2, cause=CAUSE)], details=[SAID])),
    "interpreter": live(straggler(late=[late(2, cause=CAUSE | INTERPRETER)])),
    "no cause": live(straggler(late=[late(2, cause={"cause": None})])),
    "cheap rank": live(job("llama", late=[late(2, costs_enough=False)])),
    # All is lost in the stage where it began if the exporter does not say.
    "loss by stage": live(straggler(late=[late(2, stage="backward", gpus_by_stage=STAGES)])),
    "slow node": slow_node(),
    "set": together([[4, 7]]),
    "set on two nodes": together([[4, 7]], kind="node", nodes=2),
    "set that costs less": cheap_set(),
    # The stack of the rank that a hung job waits for comes first, and all GPUs wait.
    "hung": live(hung()),
    "hung on a frozen rank": live(hung(ranks=FROZEN)),
    # As every node says it.
    "rank of another node": live(straggler(late=[late(6, is_here=False, cause=CAUSE, at=GPU_7)])),
    "hung on another node": live(
        hung(ranks=WAITING, suspect=GPU_7 | {"rank": "6", "stage": "data"})
    ),
    "hung on a frozen one": live(hung(ranks=WAITING, suspect=GPU_7 | {"rank": "6"})),
    "stands still": of_state("not_judgeable", reason="no_steps", suspect=GPU_7 | {"rank": "6"}),
    "silent rank": of_state("ranks_missing", ranks=SILENT),
    # Even if its rank still waits.
    "lost GPU": of_state("healthy") | {"gpus": [gpu(1, up=True), gpu(2, up=False)]},
    "balanced": of_state("healthy"),
    "all wait": of_state("shared", alert=BOUND, gpus_lost={"shared": 0.2, "common": 2.4}),
    "all wait for input": of_state("shared", alert=STARVED, gpus_lost={"shared": 2.4}),
    "slow start": of_state("starting", alert="RankskewSlowStart"),
    "not judgeable": of_state("not_judgeable", reason="no_sync"),
    "reason of another release": of_state("not_judgeable", reason="of_a_newer_release"),
    "slower": slower([SLOW_READS]),
    "slower, no cause": slower([None]),
    "some ranks slower": slower(**SOME),
}


def test_stories_are_the_golden_ones() -> None:
    """What is wrong, where, why, what it costs and what to do first, in the words of the page.

    Ranks of all nodes are together, and the node that has a late rank tells of it.
    """
    texts = {name: told(document) for name, document in STORIES.items()}
    with ExitStack() as servers:
        fleet = read_exporters([servers.enter_context(exporter_of(each)) for each in nodes()])
    texts |= {"two nodes": told(*nodes()), "ranks of two nodes": drawn(fleet)}
    assert_golden("from_exporter", texts)


# ---- Several nodes -------------------------------------------------------------------------------


def test_most_telling_word_counts() -> None:
    """One node may see that its ranks are gone while another repeats an older verdict.

    And ranks of one node may have ended or not begun while the job is judged. A job stands still
    only where all of its nodes say so.
    """
    for telling, other in (
        *(("hung", "healthy"), ("ranks_missing", "healthy")),
        *(("straggler", little) for little in ("finished", "starting", "no_probe")),
        *(("no_probe", "stands_still"), ("unused_gpus", "no_probe")),
    ):
        old, new = live(job("llama", telling), at=1.0), live(job("llama", other), at=2.0)
        assert only(old, new).state == telling


def test_newest_of_equal_words_counts() -> None:
    """But the node with the late rank tells more; a rank is shown where it is alive.

    A node without a name has its address.
    """
    dead = [rank(0, heartbeat_age_seconds=500.0, silent=True)]
    old = job("llama", slowdown=1.1, ranks=dead)
    new = job("llama", slowdown=1.2, ranks=[rank(0, host="")])
    found = only(live(new, host="", at=2.0), live(old, at=1.0))
    elsewhere = straggler(late=[late(2, is_here=False)], sentence="Rank 2 (not on this node)")
    told = only(live(elsewhere, host="node2", at=2000.0), live(straggler()))

    assert (found.slowdown, [each.node for each in found.ranks]) == (1.2, ["node1:9917"])
    assert told.sentence == "Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it."


def test_fleet_is_read_over_http() -> None:
    """Two exporters make one, the most urgent job first; what does not answer is said.

    Of a job that is named the late rank comes first.
    """
    with exporter_of(live()) as dead:
        pass
    with exporter_of(live(job("calm"), straggler())) as one, exporter_of(live(hung())) as two:
        fleet = read_exporters([one, two, dead])
        (llama,) = read_exporters([one, two], "llama").jobs
        report = diagnose.read_exporters([one, dead], "llama")
        with pytest.raises(Trouble, match="does not answer"):
            diagnose.read_exporters([dead], None)
    silent = f"{dead} does not answer: Connection refused."

    assert [each.job_id for each in fleet.jobs] == ["vision", "llama", "calm"]
    assert (fleet.troubles, fleet.focus) == ([silent], None)
    assert [each.rank for each in llama.ranks] == [2, 0, 1, 3]
    assert report.findings[0].rank == 2
    assert silent in report.unjudged


@pytest.mark.parametrize(
    ("jobs", "job_id", "shown", "trouble"),
    [
        ([hung(), straggler()], "lama", 0, "There is no job 'lama'; there are: llama, vision."),
        ([hung(), straggler()], None, 2, "There are 2 jobs; name one with --job: llama, vision."),
        ([], None, 0, NO_RANK),
    ],
)
def test_diagnose_tells_of_one_job_only(
    jobs: list[dict[str, Any]], job_id: str | None, shown: int, trouble: str
) -> None:
    """`top` shows several, and has no trouble with them."""
    with exporter_of(live(*jobs)) as url:
        fleet = read_exporters([url], job_id)
        with pytest.raises(CannotTell) as said:
            diagnose.read_exporters([url], job_id)

    assert str(said.value) == trouble
    assert (len(fleet.jobs), fleet.troubles) == (shown, [] if shown else [trouble])


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


@pytest.mark.parametrize("nonsense", [None, "text", -1, {"rank": "x"}, [None, {}, {"rank": []}]])
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
        *map(json_answer, (["a", "list"], {}, {"jobs": 1})),
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
