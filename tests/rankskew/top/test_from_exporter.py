"""Jobs from the live summaries of exporters, of this version and of others."""

import json
from typing import Any

import pytest

from rankskew.client.fetch import Trouble
from rankskew.top.from_exporter import merged, read_document, read_exporters
from rankskew.top.model import NO_RANK, UNKNOWN, JobStatus
from tests.rankskew.client.servers import Answer, exporter_of, json_answer, serving
from tests.rankskew.top.documents import CAUSE, SLOW_DATA, hung, job, late, live, rank, straggler

URL = "http://node1:9917"


def only(*documents: object) -> JobStatus:
    """Return the one job that *documents* of several nodes show."""
    sent = [json.loads(json.dumps(document)) for document in documents]
    (found,) = merged(read_document(document, URL) for document in sent)
    return found


@pytest.mark.parametrize(
    ("changes", "details", "told"),
    [
        pytest.param(
            {},
            ["Cause: it reads 240 MB/s, its peers 2."],
            "Cause: it reads 240 MB/s, its peers 2.",
            id="that the page says in its details",
        ),
        pytest.param(
            {"cause": "unknown", "detail": "", "share": 0.0, "sentence": "nothing explains it"},
            [],
            "Cause unknown: nothing explains it.",
            id="that is not known, and accounts for nothing",
        ),
    ],
)
def test_cause_is_said_once(changes: dict[str, object], details: list[str], told: str) -> None:
    found = only(live(straggler(late=[late(2, cause=CAUSE | changes)], details=details)))

    assert list(found.details) == [told]


STUCK: dict[str, Any] = {"last_step_age_seconds": 190.0, "stage": "sync"}
FROZEN = [rank(each, silent=each == 3, **STUCK) for each in range(4)]


@pytest.mark.parametrize(
    ("said", "culprit"),
    [
        # It costs too little, by the definition of the rules.
        (job("llama", late=[late(2, costs_enough=False)]), None),
        # The rank outside sync, or the one that reports no more, as the rules call its stage.
        (hung(), (1, "backward")),
        (hung(ranks=FROZEN), (3, "frozen")),
    ],
)
def test_rank_to_look_at(said: dict[str, Any], culprit: tuple[int, str] | None) -> None:
    """A hang costs the whole job."""
    found = only(live(said))

    assert found.culprit == culprit
    if found.state == "hung":
        assert (found.gpus_lost, found.since_seconds) == (8, 190.0)


def test_several_nodes_make_one_job() -> None:
    """Ranks of all nodes are together, and the node that has the late rank tells."""
    here = live(straggler())
    elsewhere = straggler(late=[late(2, is_here=False)], sentence="Rank 2 (not on this node)")
    elsewhere["ranks"] = [rank(each, host="node2") for each in range(4, 8)]
    found = only(live(elsewhere, host="node2", at=2000.0), here)

    assert found.sentence == "Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it."
    assert [each.rank for each in found.ranks] == list(range(8))
    assert found.ranks[7].node == "node2"
    assert found.ranks_seen == 8


@pytest.mark.parametrize(
    ("old", "new", "state"),
    [
        *(("hung", "healthy", "hung"), ("ranks_missing", "healthy", "ranks_missing")),
        *(("straggler", little, "straggler") for little in ("finished", "starting", "no_probe")),
    ],
)
def test_most_telling_word_counts(old: str, new: str, state: str) -> None:
    """One node may see that its ranks are gone while another repeats an older verdict.

    And ranks of one node may have ended or not begun while the job is judged.
    """
    documents = [live(job("llama", each), at=at) for at, each in ((1.0, old), (2.0, new))]

    assert only(*documents).state == state


def test_newest_of_equal_words_counts() -> None:
    """All nodes repeat one verdict; a rank that moved is shown where it is alive."""
    dead = [rank(0, heartbeat_age_seconds=500.0, silent=True)]
    old, new = (
        job("llama", slowdown=1.1, ranks=dead),
        job("llama", slowdown=1.2, ranks=[rank(0, "node2")]),
    )
    found = only(live(new, host="node2", at=2.0), live(old, at=1.0))

    assert (found.slowdown, [each.node for each in found.ranks]) == (1.2, ["node2"])


def test_node_without_a_name_has_its_address() -> None:
    """An exporter that knows no host, PID or GPU still shows its ranks."""
    document = live(straggler("llama", late=[late(2, kind="node")]), host="")
    document["jobs"][0]["verdict"]["state"] = "slow_node"
    for each in document["jobs"][0]["ranks"]:
        each["host"] = ""
        del each["pid"], each["gpu"]
    found = only(document)

    assert found.state == "slow_node"
    assert found.ranks[0].node == "node1:9917"
    assert (found.ranks[0].pid, found.ranks[0].gpu) == (None, None)


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
    """Escape sequences are question marks; a state of a later exporter ends nothing."""
    with exporter_of(live(job("evil\x1b[2J\n", "levitating"))) as url:
        (found,) = read_exporters([url]).jobs

    assert (found.job_id, found.state) == ("evil?[2J?", UNKNOWN)


def test_rank_without_probe_reports_nothing() -> None:
    """A rank known from its process on a GPU has no last report and no stage."""
    document = live(job("llama", "no_probe", ranks=[rank(0, stage="", heartbeat_age_seconds=0.0)]))
    (found,) = only(document).ranks

    assert (found.stage, found.report_age_seconds) == (None, None)


def test_jobs_are_read_over_http() -> None:
    """Two exporters make one fleet, the most urgent job first; what does not answer is said."""
    with exporter_of(live()) as gone:
        pass
    with exporter_of(live(job("calm"), straggler())) as one, exporter_of(live(hung())) as two:
        fleet = read_exporters([one, two, gone])

    assert [each.job_id for each in fleet.jobs] == ["vision", "llama", "calm"]
    assert (fleet.troubles, fleet.focus) == ([f"{gone} does not answer: Connection refused."], None)


@pytest.mark.parametrize(
    ("jobs", "job_id", "ranks", "troubles"),
    [
        pytest.param([straggler()], None, [2, 0, 1, 3], [], id="the only job"),
        pytest.param([hung(), straggler()], "llama", [2, 0, 1, 3], [], id="the one that is named"),
        pytest.param(
            [hung(), straggler()],
            "lama",
            None,
            ["There is no job 'lama'; there are: llama, vision."],
            id="no such job",
        ),
        pytest.param([], None, None, [NO_RANK], id="no job yet"),
    ],
)
def test_one_job_is_in_focus(
    jobs: list[dict[str, Any]], job_id: str | None, ranks: list[int] | None, troubles: list[str]
) -> None:
    with exporter_of(live(*jobs)) as url:
        fleet = read_exporters([url], job_id)

    assert (fleet.focus and [each.rank for each in fleet.focus.ranks]) == ranks
    assert fleet.troubles == troubles
    assert len(fleet.jobs) == (ranks is not None)


def test_huge_job_shows_its_worst_ranks() -> None:
    """Of a thousand ranks twenty have a row: the late one, then the slowest."""
    ranks = [
        rank(each, stage_seconds={"forward": 0.1 + each / 1e4, "sync": 0.1}) for each in range(1000)
    ]
    ranks[7] = rank(7, stage_seconds=SLOW_DATA)
    with exporter_of(live(straggler(late=[late(7)], ranks=ranks))) as url:
        fleet = read_exporters([url])

    assert fleet.focus is not None
    assert [each.rank for each in fleet.focus.ranks][:3] == [7, 999, 998]
    assert (len(fleet.focus.ranks), fleet.focus.ranks_seen) == (20, 1000)


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
    with serving(lambda path, form: answer) as url:
        fleet = read_exporters([url])

    assert fleet.troubles == [
        f"{url} answers, but it is not a Rankskew exporter; --prometheus URL asks a Prometheus."
    ]
