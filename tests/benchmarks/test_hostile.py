"""What must hold while an exporter is attacked can fail: each harm is noticed."""

from pathlib import Path

import pytest

from benchmarks.hostile import attack as attacking
from benchmarks.hostile import victim as suffering
from benchmarks.hostile.attack import Harm, Plan, run
from benchmarks.hostile.bodies import JOBS, RANKS
from benchmarks.hostile.case import Case
from benchmarks.hostile.victim import Broken, Victim

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
    monkeypatch.setattr(suffering, "scrape", lambda *_: page.encode())
    monkeypatch.setattr(suffering, "get", lambda *_: live)

    with pytest.raises(Broken, match=complaint):
        victim.check_service()


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
    monkeypatch.setattr(attacking, "attack", lambda *_: [1.0])

    with pytest.raises(Harm, match=complaint):
        run(tmp_path, Plan(bodies=10, requests=10))
