"""A dry run says what a push would come to, and leaves no trace."""

import copy
from pathlib import Path

import pytest

from exporter.ingest.app import IngestApp, IngestCounts
from exporter.ingest.token_file import TokenFile
from exporter.listeners.peer import Peer
from exporter.operator.levels import Orders
from exporter.ranks.limits import BEGINNINGS_A_MINUTE, RankLimits
from exporter.ranks.store import RankStore
from exporter.scrapers import Scrapers
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH, SNAPSHOT_PATH
from tests.exporter.asgi import Answer, ask
from tests.exporter.clock import Clock
from tests.exporter.snapshots import snapshot

MAX_BODY_BYTES = 2_000
USER, OTHER, ROOT = Peer(1000), Peer(1001), Peer(0)


class Listener:
    """The ingest application, asked for dry runs and pushed to."""

    def __init__(self, limits: RankLimits | None = None, token: TokenFile | None = None) -> None:
        self.clock = Clock()
        self.store = RankStore(limits, self.clock)
        self.counts = IngestCounts()
        self.scrapers = Scrapers(self.clock)
        orders = Orders(self.store)
        self.app = IngestApp(self.store, self.counts, orders, MAX_BODY_BYTES, token, self.scrapers)

    def post(self, path: str, content: bytes, peer: Peer | None, **headers: str) -> Answer:
        answer = ask(self.app, "POST", path, content, peer=peer, **headers)
        assert answer is not None
        return answer

    def push(self, content: bytes, peer: Peer | None = USER) -> Answer:
        return self.post(SNAPSHOT_PATH, content, peer)

    def try_out(self, content: bytes, peer: Peer | None = USER, **headers: str) -> Answer:
        return self.post(DRY_RUN_PATH, content, peer, **headers)

    def counted(self) -> dict[str, int]:
        return {result: count for result, count in self.counts.results.items() if count}


def test_rank_that_could_report_is_told_so() -> None:
    """The answer has the exporter's version, and the rank is neither kept nor counted."""
    listener = Listener()
    answer = listener.try_out(snapshot().to_json())

    assert (answer.status, answer.content) == (
        200,
        {
            "version": __version__,
            "would_accept": True,
            "result": "accepted",
            "reason": None,
            "unknown_fields": 0,
            "scraped": [],
            "running": [],
        },
    )
    assert listener.store.ranks() == []
    assert listener.counted() == {}


def test_dry_run_tells_which_jobs_run() -> None:
    """Only ranks that push now count, and only their user learns the job's name."""
    listener = Listener()
    on_gpus = {rank: {"gpu_uuid": f"GPU-{rank}"} for rank in (1, 0)}
    for rank, info in on_gpus.items():
        listener.push(snapshot(rank=rank, rank_info=info).to_json())
    listener.push(snapshot(job_id="ended", finished=True).to_json())
    asked = snapshot(job_id="bench").to_json()
    own, others = listener.try_out(asked), listener.try_out(asked, OTHER)
    listener.clock.seconds += 10.0
    silent = listener.try_out(asked)

    job = {"job_id": "llama", "ranks": 2, "gpu_uuids": ["GPU-0", "GPU-1"]}
    assert own.content["running"] == [job]
    assert others.content["running"] == [job | {"job_id": ""}]
    assert silent.content["running"] == []


def test_dry_run_names_the_scrapers() -> None:
    """Who only asks learns whether a Prometheus fetches what the ranks report."""
    listener = Listener()
    listener.scrapers.see("10.0.0.7", "Prometheus/2.53.0")
    listener.clock.seconds += 12.0

    assert listener.try_out(snapshot().to_json()).content["scraped"] == [
        {"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 12.0}
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
        (snapshot(sequence=2).to_json(), ROOT),
    ],
)
def test_dry_run_says_what_the_push_would_be_told(content: bytes, peer: Peer | None) -> None:
    """It foretells result and sentence of the push that follows, and tells nothing else."""
    listener = Listener(RankLimits(jobs=2))
    listener.push(snapshot().to_json())
    listener.push(snapshot(job_id="second").to_json())
    before = copy.deepcopy((listener.store.ranks(), listener.counts))
    tried = listener.try_out(content, peer)
    assert (listener.store.ranks(), listener.counts) == before
    pushed = listener.push(content, peer)
    (result,) = [
        result
        for result, count in listener.counts.results.items()
        if count > before[1].results[result]
    ]

    assert tried.status == pushed.status
    assert tried.content["would_accept"] is (pushed.status == 200)
    assert (tried.content["result"], tried.content["reason"]) == (
        result,
        pushed.content.get("error"),
    )


def test_dry_run_pushes_nobody_out() -> None:
    """Where a push would make another owner's rank give way, a dry run leaves it."""
    listener = Listener(RankLimits(ranks=2))
    for rank in (0, 1):
        listener.push(snapshot(rank=rank).to_json())
    held = listener.store.ranks()
    answer = listener.try_out(snapshot(job_id="newcomer").to_json(), OTHER)

    assert answer.content["would_accept"] is True
    assert listener.store.ranks() == held


def test_dry_run_is_not_a_start() -> None:
    """Asking costs a user none of the ranks that may start in a minute."""
    listener = Listener(RankLimits(ranks=1))
    for _ in range(BEGINNINGS_A_MINUTE):
        listener.try_out(snapshot().to_json())

    assert listener.push(snapshot().to_json()).status == 200


def test_guessing_is_no_faster_than_with_pushes() -> None:
    """A user may ask about as many ranks in a minute as may start; others are not held up."""
    listener = Listener(RankLimits(ranks=1))
    guesses = [
        listener.try_out(snapshot(job_id=f"guess-{number}").to_json(), OTHER)
        for number in range(BEGINNINGS_A_MINUTE + 1)
    ]

    assert [guess.status for guess in guesses] == [200] * BEGINNINGS_A_MINUTE + [429]
    assert guesses[-1].content == {
        "error": "This user has asked too often in the last minute; ask again in a minute."
    }
    assert listener.try_out(snapshot().to_json(), USER).status == 200
    listener.clock.seconds += 60.0
    assert listener.try_out(snapshot().to_json(), OTHER).status == 200


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
    listener = Listener(token=TokenFile(tmp_path / "token", "--ingest.token-file"))
    headers = {"authorization": "Bearer s3cret"} | headers
    answer = listener.try_out(content, None, **headers)

    assert answer.status == status
    assert answer.content.keys() == {"error"}


def test_dry_run_that_broke_off_gets_no_answer() -> None:
    """A process killed while it asks is not counted as a push."""
    listener = Listener()

    assert ask(listener.app, "POST", DRY_RUN_PATH) is None
    assert listener.counted() == {}
