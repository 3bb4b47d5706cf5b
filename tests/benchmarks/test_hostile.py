"""Tests that the attack is the same for the same seed, and that what must hold can fail."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import hostile, hostile_victim
from benchmarks.hostile import Harm, Plan, attack, run
from benchmarks.hostile_bodies import JOBS, RANKS, body, valid
from benchmarks.hostile_case import Case, shortest
from benchmarks.hostile_requests import request
from benchmarks.hostile_victim import Broken, Victim
from exporter.ingest.schema import parse

REQUEST = Case("request:0", "web", (b"GET / HTTP/1.1\r\n\r\n",))
PAGE = f'rankskew_steps_total{{job_id="watched"}} {10 * JOBS * RANKS}\n'


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Victim:
    """A victim whose process is never started, and to which every proper push succeeds."""
    idle = Victim(tmp_path)
    idle.log.touch()
    monkeypatch.setattr(idle, "_post", lambda body: 200)
    return idle


def answering(victim: Victim, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have *victim* answer every request so."""
    monkeypatch.setattr(victim, "_exchange", lambda case: answer)


@pytest.mark.parametrize("make", [body, request])
def test_seed_and_number_say_what_is_sent(make: hostile.Make) -> None:
    """A case can be sent again by its seed and number, and is another for another seed."""
    cases = [make(1, number) for number in range(50)]

    assert cases == [make(1, number) for number in range(50)]
    assert cases != [make(2, number) for number in range(50)]


def test_unspoiled_snapshot_is_taken() -> None:
    """What the mutations begin with is valid, so that what is refused is refused for them."""
    snapshot, unknown = parse(valid("j", 3))

    assert (snapshot.sequence, unknown) == (4, 0)


def test_shortest_harm_is_found() -> None:
    """What does not matter is cut, of bytes and of a list of cases alike."""
    cases = tuple(body(1, number) for number in range(9))

    assert shortest(b"harmless BAD harmless", lambda data: b"BAD" in data) == b"BAD"
    assert shortest(cases, lambda some: cases[4] in some) == (cases[4],)


def test_server_error_is_noticed(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 5xx that is not for want of room breaks the exporter's promise, also in a pipeline."""
    ok, error = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Internal Server Error\r\n\r\n",
    )
    answering(victim, ok, monkeypatch)
    victim.suffer(REQUEST)
    answering(victim, ok + error, monkeypatch)

    with pytest.raises(Broken, match="answered 500"):
        victim.suffer(REQUEST)


def test_refusal_for_want_of_room_is_counted(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 503 of a full listener is no harm, and is told apart."""
    said = b"HTTP/1.1 503 Service Unavailable\r\n\r\nToo many web connections are open on this"
    answering(victim, said, monkeypatch)
    victim.suffer(REQUEST)

    assert victim.turned_away == 1


@pytest.mark.parametrize(
    ("said", "complaint"),
    [("Traceback (most recent call last):\n", "traceback"), ("x" * 20_000, "logged 20000 bytes")],
)
def test_log_is_watched(
    victim: Victim, said: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback, or a log that grows with what is sent, is noticed at the case that does it."""
    answering(victim, b"", monkeypatch)
    victim.suffer(REQUEST)
    victim.log.write_text(said)

    with pytest.raises(Broken, match=complaint):
        victim.suffer(REQUEST)


@pytest.mark.parametrize(
    ("page", "live", "complaint"),
    [
        (PAGE + PAGE, b"{}", "is there 2 times"),
        (PAGE + "up NaN\n", b"{}", "is no number"),
        (PAGE + "up{ 1\n", b"{}", "cannot be read"),
        ("up 1\n", b"{}", "a proper push is not on it"),
        (PAGE, b'{"jobs": NaN}', "NaN is no JSON"),
    ],
)
def test_pages_are_read(
    victim: Victim, page: str, live: bytes, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that a scraper or a browser could not use is noticed."""
    monkeypatch.setattr(victim, "pages", 1)
    monkeypatch.setattr(hostile_victim, "scrape", lambda *_: page.encode())
    monkeypatch.setattr(hostile_victim, "get", lambda *_: live)

    with pytest.raises(Broken, match=complaint):
        victim.check_service()


def test_harm_is_told_with_its_bytes(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has the shortest bytes and the command that sends the case again."""

    def suffer(case: Case) -> None:
        if b"schema" in case.data:
            raise Broken("answered 500")

    def harm_of(_: Victim, cases: Iterable[Case]) -> str | None:
        return "answered 500" if any(b"schema" in case.data for case in cases) else None

    monkeypatch.setattr(victim, "suffer", suffer)
    monkeypatch.setattr(hostile, "harm_of", harm_of)
    with pytest.raises(Harm) as raised:
        attack(victim, Plan(seed=3), "body", range(10))

    text = str(raised.value)
    assert "body:0: answered 500" in text
    assert "--seed 3 --repeat body:0" in text
    assert text.endswith(": b'schema'")


@pytest.mark.parametrize(
    ("after", "complaint"), [((60.0, 14), "grew by 10.0 MiB"), ((50.0, 40), "26 more files")]
)
def test_growth_is_noticed(
    tmp_path: Path, after: tuple[float, int], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and files at the end are held against those after the warm-up."""
    resources = [(50.0, 14), after]
    monkeypatch.setattr(Victim, "start", lambda _: None)
    monkeypatch.setattr(Victim, "resources", lambda _: resources.pop(0))
    monkeypatch.setattr(hostile, "attack", lambda *_: [1.0])

    with pytest.raises(Harm, match=complaint):
        run(tmp_path, Plan(bodies=10, requests=10))
