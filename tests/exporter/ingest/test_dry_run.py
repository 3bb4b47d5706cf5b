"""A dry run says what a push would come to, and leaves no trace."""

import copy
from pathlib import Path

import pytest

from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.ranks.limits import BEGINNINGS_A_MINUTE, RankLimits
from exporter.scrapers import Scrapers
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH
from tests.exporter.asgi import Answer, ask
from tests.exporter.ingest.posting import MAX_BODY_BYTES, OTHER, USER, Ingest
from tests.exporter.snapshots import snapshot


def try_out(ingest: Ingest, content: bytes, peer: Peer | None = USER, **headers: str) -> Answer:
    return ingest.send("POST", DRY_RUN_PATH, content, peer, **headers)


def test_rank_that_could_report_is_told_so() -> None:
    """The answer has the exporter's version, and the rank is neither kept nor counted."""
    ingest = Ingest()
    answer = try_out(ingest, snapshot().to_json())

    assert answer.status == 200
    assert answer.content == {
        "version": __version__,
        "would_accept": True,
        "result": "accepted",
        "reason": None,
        "unknown_fields": 0,
        "scraped": [],
        "no_join": "",
    }
    assert ingest.store.ranks() == []
    assert ingest.counted() == {}


def test_dry_run_tells_why_ranks_of_the_job_cannot_be_compared() -> None:
    """Only ranks that push now count, and only their user learns it."""
    ingest = Ingest()
    for rank in (1, 0):
        no_join = "file_store" if rank else ""
        ingest.push(snapshot(rank=rank, no_join=no_join).to_json(), USER)
    ingest.push(snapshot(job_id="other", no_join="mpi_backend").to_json(), USER)
    asked = snapshot(rank=2).to_json()
    own, others = try_out(ingest, asked), try_out(ingest, asked, OTHER)
    unlike = try_out(ingest, snapshot(job_id="bench").to_json())
    ingest.clock.seconds += 10.0
    silent = try_out(ingest, asked)

    found = [answer.content["no_join"] for answer in (own, others, unlike, silent)]
    assert found == ["file_store", "", "", ""]


def test_dry_run_names_the_scrapers() -> None:
    """Who only asks learns whether a Prometheus fetches what the ranks report."""
    scrapers = Scrapers(lambda: 0.0)
    scrapers.see("10.0.0.7", "Prometheus/2.53.0")

    assert try_out(Ingest(scrapers=scrapers), snapshot().to_json()).content["scraped"] == [
        {"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 0.0}
    ]


@pytest.mark.parametrize(
    ("content", "peer"),
    [
        (snapshot(sequence=2).to_json(), USER),
        (snapshot().to_json(), USER),
        (snapshot(job_id="another").to_json(), OTHER),
        (b"\xff", USER),
        (b"not json", USER),
        (b"[" * 1_000, USER),
        (b'{"job_id": 1}', USER),
        (snapshot(rank=9).to_json(), USER),
        (snapshot(job_id="\x1b[2J").to_json(), USER),
        (snapshot(started_timestamp_seconds=1.0).to_json(), USER),
        (snapshot(job_id="a third").to_json(), USER),
        (snapshot(sequence=2).to_json(), OTHER),
        (snapshot(sequence=2).to_json(), None),
        (snapshot(sequence=2).to_json(), Peer(1000, "a-container")),
        (snapshot(sequence=2).to_json(), Peer(0)),
    ],
)
def test_dry_run_says_what_the_push_would_be_told(content: bytes, peer: Peer | None) -> None:
    """It foretells result and sentence of the push that follows, and tells nothing else."""
    ingest = Ingest(RankLimits(jobs=2))
    ingest.push(snapshot().to_json(), USER)
    ingest.push(snapshot(job_id="second").to_json(), USER)
    before = copy.deepcopy((ingest.store.ranks(), ingest.counts))
    tried = try_out(ingest, content, peer)
    assert (ingest.store.ranks(), ingest.counts) == before
    pushed = ingest.push(content, peer)
    counted = before[1].results
    (result,) = [name for name, count in ingest.counted().items() if count > counted[name]]

    assert tried.status == pushed.status
    assert tried.content["would_accept"] is (pushed.status == 200)
    assert tried.content["result"] == result
    assert tried.content["reason"] == pushed.content.get("error")


def test_dry_run_pushes_nobody_out() -> None:
    """Where a push would make another owner's rank give way, a dry run leaves it."""
    ingest = Ingest(RankLimits(ranks=2))
    for rank in (0, 1):
        ingest.push(snapshot(rank=rank).to_json(), USER)
    held = ingest.store.ranks()
    answer = try_out(ingest, snapshot(job_id="newcomer").to_json(), OTHER)

    assert answer.content["would_accept"] is True
    assert ingest.store.ranks() == held


def test_guessing_is_no_faster_than_with_pushes() -> None:
    """A user may ask about as many ranks in a minute as may start; others are not held up.

    Asking costs nobody the ranks that may start.
    """
    ingest = Ingest(RankLimits(ranks=1))
    guesses = [
        try_out(ingest, snapshot(job_id=f"guess-{number}").to_json(), OTHER)
        for number in range(BEGINNINGS_A_MINUTE + 1)
    ]

    assert [guess.status for guess in guesses] == [200] * BEGINNINGS_A_MINUTE + [429]
    assert guesses[-1].content == {
        "error": "This user has asked too often in the last minute; ask again in a minute."
    }
    assert try_out(ingest, snapshot().to_json(), USER).status == 200
    assert ingest.push(snapshot().to_json(), OTHER).status == 200
    ingest.clock.seconds += 60.0
    assert try_out(ingest, snapshot(sequence=2).to_json(), OTHER).status == 200


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"x" * (MAX_BODY_BYTES + 1), {}, 413),
        (snapshot().to_json(), {"origin": "https://evil.example"}, 403),
        (snapshot().to_json(), {"authorization": "Bearer guess"}, 401),
    ],
)
def test_dry_run_is_admitted_as_a_push_is(
    tmp_path: Path, content: bytes, headers: dict[str, str], status: int
) -> None:
    """What may not push may not ask: a web page, a client without the token, a flood of bytes."""
    (tmp_path / "token").write_text("s3cret")
    ingest = Ingest(token=TokenFile(tmp_path / "token", "--ingest.token-file"))
    answer = try_out(ingest, content, None, **({"authorization": "Bearer s3cret"} | headers))

    assert answer.status == status
    assert answer.content.keys() == {"error"}


def test_dry_run_that_broke_off_gets_no_answer() -> None:
    """A process killed while it asks is not counted as a push."""
    ingest = Ingest()

    assert ask(ingest.app, "POST", DRY_RUN_PATH) is None
    assert ingest.counted() == {}
