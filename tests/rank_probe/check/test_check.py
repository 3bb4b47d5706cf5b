"""`rank-probe check` finds out whether a rank could report, and says why not in one sentence."""

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from rank_probe.check import exporter as check_exporter
from rank_probe.check.check import Checked, check
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH
from tests.exporter.running import RunningExporter, running_exporter
from tests.exporter.snapshots import snapshot
from tests.rank_probe.answering import answering, saying

UPGRADE = f"which cannot check a rank: upgrade it to {__version__}, the version of this probe"
SCRAPED = {"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 12.0}


def judged(**changes: Any) -> dict[str, Any]:
    """Return an exporter's answer to a dry run: accepted, and scraped a moment ago."""
    said = {"version": __version__, "would_accept": True, "result": "accepted", "reason": None}
    return said | {"unknown_fields": 0, "scraped": [SCRAPED]} | changes


def described(title: str, version: str = "0.0.9") -> tuple[int, dict[str, Any]]:
    return 200, {"info": {"title": title, "version": version}}


def look(endpoint: str, require_scrape: bool = False, **environment: str) -> Checked:
    return check({"RANKSKEW_EXPORTER": endpoint} | environment, 0.0, require_scrape)


def problem(endpoint: str, require_scrape: bool = False, **environment: str) -> str:
    """Return the one sentence of the problem that is found."""
    found = look(endpoint, require_scrape, **environment)
    assert found.problem is not None
    assert "\n" not in str(found.problem)
    return str(found.problem)


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real exporter that nothing has scraped yet."""
    with running_exporter(tmp_path_factory.mktemp("check") / "e.sock") as running:
        yield running


def test_exporter_that_accepts_is_found(exporter: RunningExporter) -> None:
    """Versions, socket and scrapers come from a real exporter, which keeps nothing of it."""
    endpoint = f"unix:{exporter.socket_path}"
    before = look(endpoint, RANK="3", WORLD_SIZE="4", SLURM_JOB_ID="77")
    assert (before.problem, before.job_id, before.job_source) == (None, "77", "SLURM_JOB_ID")
    assert (before.rank_source, before.socket is not None) == ("RANK and WORLD_SIZE", True)
    assert "nobody has scraped" in " ".join(before.warnings)
    assert 'job_id="77"' not in exporter.metrics()
    after = look(endpoint, require_scrape=True)

    assert (after.problem, after.warnings) == (None, ())
    assert after.answer is not None
    assert after.answer.version == __version__
    assert [scraper.address for scraper in after.answer.scraped] == ["127.0.0.1"]


def test_check_beside_a_running_job_is_no_older_process(exporter: RunningExporter) -> None:
    """On the node of a restarted job, a person without a rank is told that ranks can report."""
    endpoint = f"unix:{exporter.socket_path}"
    exporter.push(snapshot(job_id="restarted", attempt=3, world_size=1).to_json())
    assert look(endpoint, RANKSKEW_JOB_ID="restarted").problem is None
    # For a job that nothing can show, the exporter's own sentence says what is wrong.
    said = problem(endpoint, RANKSKEW_JOB_ID="x" * 200)
    assert said.startswith("the exporter would refuse this rank: Field job_id is wrong")


def test_listeners_of_the_exporter_are_told_apart(exporter: RunningExporter) -> None:
    """Its web listener and its operator's socket are exporters, but no rank reports there."""
    web = problem(f"http://127.0.0.1:{exporter.port}")
    operator = problem(f"unix:{exporter.operator_path}")

    assert "is where the exporter serves its page and its metrics, and no rank can" in web
    assert "is where the exporter serves its operator, and no rank can report there" in operator


def test_what_may_go_wrong_later_is_a_warning() -> None:
    """A newer exporter that accepts the rank does its work; with RANK_PROBE=0 no rank reports."""
    newer = judged(version="9.9.9", unknown_fields=2)
    with answering({DRY_RUN_PATH: (200, newer)}) as endpoint:
        found = look(endpoint, RANK_PROBE="0", RANK_PROBE_LABELS="rack=r12,switch")

    assert found.problem is None
    assert set(found.warnings) == {
        f"the exporter is rankskew 9.9.9 and this probe {__version__}: use the same release, "
        "and upgrade exporters first",
        "the exporter does not know 2 fields of this probe's snapshots",
        "RANK_PROBE=0 turns the probe off here: no rank will report",
        "RANK_PROBE_LABELS has 'switch=', which is left out: write at most 8 different labels as "
        "name=value, with commas between; a name has up to 32 of A-Z a-z 0-9 _ . -, a value up to "
        "96 characters",
    }


@pytest.mark.parametrize(
    ("no_join", "environment", "why"),
    [
        ("hash_store", {}, "its process group is on a HashStore"),
        ("of_a_newer_release", {}, "the probe says of_a_newer_release; the exporter of each node"),
        ("", {"RANK_PROBE_JOIN": "0"}, "RANK_PROBE_JOIN=0 turns that off"),
    ],
)
def test_job_whose_ranks_cannot_be_compared_is_told_why(
    no_join: str, environment: dict[str, str], why: str
) -> None:
    """As its running ranks say; what another job's ranks say is not told."""
    running = [
        {"job_id": "other", "ranks": 1, "gpu_uuids": [], "no_join": "mpi_backend"},
        {"job_id": "llama", "ranks": 2, "gpu_uuids": [], "no_join": no_join},
        {"job_id": "llama", "ranks": 2, "gpu_uuids": []},  # as an older exporter says it
    ]
    with answering({DRY_RUN_PATH: (200, judged(running=running))}) as endpoint:
        found = look(endpoint, False, RANKSKEW_JOB_ID="llama", **environment)

    (warning,) = found.warnings
    assert warning.startswith(f"the ranks of job 'llama' do not compare their steps: {why}")


INGEST = "rankskew ingest"
NO_EXPORTER = "what listens at {endpoint} is not an exporter: it answers {status}"


def error(sentence: str) -> dict[str, str]:
    return {"error": sentence}


@pytest.mark.parametrize(
    ("title", "status", "content", "sentence"),
    [
        # An exporter without dry runs is recognised by its description.
        (INGEST, 404, error("Not Found."), f"{{endpoint}} is rankskew 0.0.9, {UPGRADE}"),
        # Anything that speaks HTTP but is no exporter is named as that.
        ("their API", 501, b"<html>Unsupported method</html>", NO_EXPORTER),
        ("their API", 200, b"<html>Welcome to nginx!</html>", NO_EXPORTER),
        ("their API", 200, {"version": "1"}, NO_EXPORTER),
        ("their API", 200, judged(scraped=[{"address": "x"}]), NO_EXPORTER),
        ("their API", 200, judged(scraped=7), NO_EXPORTER),
        ("their API", 200, b"[" * 100_000, NO_EXPORTER),
        ("their API", 204, b"", NO_EXPORTER),
        ("their API", 404, {"detail": "Not Found"}, NO_EXPORTER),
        ("their API", 404, {"detail": "Not Found"}, "calls itself BaseHTTP"),
        # A refusal before the snapshot is read is passed on.
        (INGEST, 401, error("It wants the token."), "the exporter refuses: It wants the token"),
        (INGEST, 413, error("The body is larger."), "the exporter refuses: The body is larger"),
        (INGEST, 429, error("Too often."), "the exporter refuses: Too often"),
        (INGEST, 503, error("Too many."), "the exporter turns this rank away: Too many"),
    ],
)
def test_what_answers_says_what_is_wrong(
    title: str, status: int, content: Any, sentence: str
) -> None:
    """Another server, an older exporter, and one that refuses are told apart."""
    answers = {DRY_RUN_PATH: (status, content), "/openapi.json": described(title)}
    with answering(answers) as endpoint:
        assert sentence.format(endpoint=endpoint, status=status) in problem(endpoint)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\xff\0" * 100])
def test_other_protocol_is_no_exporter(said: bytes) -> None:
    """Something that does not speak HTTP is no exporter either."""
    with saying(said) as endpoint:
        assert problem(endpoint) == (
            f"what listens at {endpoint} is not an exporter: its answer is not HTTP"
        )


def test_server_that_hangs_is_not_awaited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what it waits for, and gives up."""
    monkeypatch.setattr(check_exporter, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr("rank_probe.check.check.TIMEOUT_SECONDS", 0.2)
    said: list[str] = []
    with saying(None) as endpoint:
        found = check({"RANKSKEW_EXPORTER": endpoint}, say=said.append)

    assert "the exporter there hangs or starts" in str(found.problem)
    assert said == [f"waiting for {endpoint} to answer, for up to 0 s"]


def test_token_is_shown(tmp_path: Path) -> None:
    """A listener that wants a token gets the one that ranks would send."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    flags = ("--ingest.listen-address=127.0.0.1:0", f"--ingest.token-file={token}")
    with running_exporter(tmp_path / "e.sock", *flags) as running:
        endpoint = f"http://127.0.0.1:{running.tcp_port()}"
        assert "wants the token" in problem(endpoint)
        assert look(endpoint, RANKSKEW_TOKEN_FILE=str(token)).problem is None


@pytest.mark.parametrize("seconds_ago", [[], [301.0, 4_000.0]])
def test_nobody_scrapes(seconds_ago: list[float]) -> None:
    """It is a warning, since ranks can report; with --require-scrape it is a failure."""
    scraped = [SCRAPED | {"seconds_ago": seconds} for seconds in seconds_ago]
    with answering({DRY_RUN_PATH: (200, judged(scraped=scraped))}) as endpoint:
        found = look(endpoint)
        assert found.problem is None
        assert found.warnings == (
            "nobody has scraped this exporter in the last 5 minutes: add the node to "
            "scrape_configs in Prometheus",
        )
        assert problem(endpoint, require_scrape=True) == found.warnings[0]


@pytest.mark.parametrize(
    ("endpoint", "sentence", "may_pass"),
    [
        ("nonsense", "it must be unix:/path/to.sock or http://127.0.0.1:PORT", False),
        (f"http://{'x' * 300}:1", "cannot be reached", False),
        ("http://127.0.0.1:1", "nothing listens at http://127.0.0.1:1: start one with", True),
        ("unix:{folder}/e.sock", "there is no socket {folder}/e.sock: start one", True),
        # In a container the directory is not mounted.
        ("unix:{folder}/no/e.sock", "there is no directory {folder}/no: start one", True),
        # A directory that a mount created in its place is not waited for.
        ("unix:{folder}", "is not a socket: set RANKSKEW_EXPORTER", False),
        ("unix:{folder}/file/e.sock", "file/e.sock: Not a directory; in a container", False),
    ],
)
def test_endpoint_without_anybody_is_one_sentence(
    endpoint: str, sentence: str, may_pass: bool, tmp_path: Path
) -> None:
    """A wrong address is told apart from one where nobody listens, which may pass."""
    (tmp_path / "file").touch()
    endpoint = endpoint.format(folder=tmp_path)
    found = look(endpoint).problem

    assert sentence.format(folder=tmp_path) in problem(endpoint)
    assert found is not None
    assert found.may_pass == may_pass


def test_socket_that_may_not_be_written_is_shown_with_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has what an administrator needs to see: user, mode and owner, as of `ls -l`."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.chmod(0o660)
    shown = look(f"unix:{path}").socket
    assert shown is not None
    assert (shown.path, shown.mode, shown.writable) == (str(path), "0660", True)
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)

    said = problem(f"unix:{path}")
    assert said.startswith(f"user 4000000 may not write to {path} (mode 0660, owner ")


def test_wait_ends_when_the_exporter_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate waits for an exporter that starts late, and says once what it waits for."""
    monkeypatch.setattr("rank_probe.check.check.POLL_SECONDS", 0.05)
    said: list[str] = []
    found: list[Checked] = []
    endpoint = f"unix:{tmp_path}/late/e.sock"

    def wait() -> None:
        found.append(check({"RANKSKEW_EXPORTER": endpoint}, 60.0, say=said.append))

    thread = threading.Thread(target=wait)
    thread.start()
    with running_exporter(tmp_path / "late" / "e.sock"):
        thread.join()

    assert found[0].problem is None
    assert said[0].startswith("waiting for up to 60 s: there is no directory ")


def test_wait_ends_with_its_time_and_is_not_for_what_cannot_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exporter that never comes is a failure after that time, a wrong address at once."""
    monkeypatch.setattr("rank_probe.check.check.POLL_SECONDS", 0.05)
    found = check({"RANKSKEW_EXPORTER": "unix:/nowhere/e.sock"}, 0.2)
    assert "there is no directory /nowhere" in str(found.problem)

    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited"))
    assert check({"RANKSKEW_EXPORTER": "nonsense"}, 60.0).problem is not None
