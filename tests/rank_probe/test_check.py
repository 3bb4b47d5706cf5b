"""`rank-probe check` finds out whether a rank could report, and says why not in one sentence."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rank_probe.check import _look, check
from rank_probe.version import __version__
from rank_probe.wire.snapshot import DRY_RUN_PATH
from tests.exporter.running import ROOT, RunningExporter, running_exporter
from tests.exporter.snapshots import snapshot
from tests.rank_probe.answering import answering, saying

SCRAPED = {"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 12.0}


def judged(**changes: Any) -> dict[str, Any]:
    """Return an exporter's answer to a dry run: accepted, and scraped a moment ago."""
    said = {"version": __version__, "would_accept": True, "result": "accepted", "reason": None}
    return said | {"unknown_fields": 0, "scraped": [SCRAPED]} | changes


def look(endpoint: str, require_scrape: bool = False, **environment: str) -> dict[str, Any]:
    return check({"RANKSKEW_EXPORTER": endpoint} | environment, 0.0, require_scrape)


def problem(endpoint: str, require_scrape: bool = False, **environment: str) -> str:
    """Return the one sentence of the problem that is found."""
    sentence = look(endpoint, require_scrape, **environment)["problem"]
    assert isinstance(sentence, str)
    assert "\n" not in sentence
    return sentence


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A real exporter that nothing has scraped yet."""
    with running_exporter(tmp_path_factory.mktemp("check") / "e.sock") as running:
        yield running


def test_exporter_that_accepts_is_found(exporter: RunningExporter) -> None:
    """Versions and scrapers come from a real exporter, which keeps nothing of it."""
    endpoint = f"unix:{exporter.socket_path}"
    before = look(endpoint, RANK="3", WORLD_SIZE="4", SLURM_JOB_ID="77")
    assert (before["ok"], before["problem"]) == (True, None)
    assert before["job"] == {"job_id": "77", "source": "SLURM_JOB_ID"}
    assert before["rank"]["source"] == "RANK and WORLD_SIZE"
    assert "nobody has scraped" in " ".join(before["warnings"])
    assert 'job_id="77"' not in exporter.metrics()
    after = look(endpoint, require_scrape=True)

    assert (after["problem"], after["warnings"]) == (None, [])
    assert after["exporter"]["version"] == __version__
    assert [scraper["address"] for scraper in after["exporter"]["scraped"]] == ["127.0.0.1"]


def test_check_beside_a_running_job_is_no_older_process(exporter: RunningExporter) -> None:
    """On the node of a restarted job, a person without a rank is told that ranks can report."""
    endpoint = f"unix:{exporter.socket_path}"
    exporter.push(snapshot(job_id="restarted", attempt=3, world_size=1).to_json())
    assert look(endpoint, RANKSKEW_JOB_ID="restarted")["ok"]
    # For a job that nothing can show, the exporter's own sentence says what is wrong.
    said = problem(endpoint, RANKSKEW_JOB_ID="x" * 200)
    assert said.startswith("the exporter would refuse this rank: Field job_id is wrong")


def test_what_may_go_wrong_later_is_a_warning() -> None:
    """A newer exporter that accepts the rank does its work; with RANK_PROBE=0 no rank reports."""
    newer = judged(version="9.9.9", unknown_fields=2)
    with answering({DRY_RUN_PATH: (200, newer)}) as endpoint:
        found = look(endpoint, RANK_PROBE="0", RANK_PROBE_LABELS="rack=r12,switch")

    assert found["ok"]
    assert set(found["warnings"]) == {
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
    """As its running ranks say."""
    with answering({DRY_RUN_PATH: (200, judged(no_join=no_join))}) as endpoint:
        found = look(endpoint, False, RANKSKEW_JOB_ID="llama", **environment)

    (warning,) = found["warnings"]
    assert warning.startswith(f"the ranks of job 'llama' do not compare their steps: {why}")


NO_EXPORTER = "what listens at {endpoint} is not where ranks report: it answers {status}; set "


def error(sentence: str) -> dict[str, str]:
    return {"error": sentence}


@pytest.mark.parametrize(
    ("status", "content", "sentence"),
    [
        # Anything that speaks HTTP but is no exporter is named as that.
        (404, error("Not Found."), NO_EXPORTER),
        (404, {"detail": "Not Found"}, NO_EXPORTER),
        (501, b"<html>Unsupported method</html>", NO_EXPORTER),
        (200, b"<html>Welcome to nginx!</html>", NO_EXPORTER),
        (200, {"version": "1"}, NO_EXPORTER),
        (200, judged(scraped=[{"address": "x"}]), NO_EXPORTER),
        (200, judged(scraped=7), NO_EXPORTER),
        (200, b"[" * 100_000, NO_EXPORTER),
        (204, b"", NO_EXPORTER),
        # A refusal before the snapshot is read is passed on.
        (401, error("It wants the token."), "the exporter refuses: It wants the token"),
        (413, error("The body is larger."), "the exporter refuses: The body is larger"),
        (429, error("Too often."), "the exporter refuses: Too often"),
        (503, error("Too many."), "the exporter refuses: Too many"),
    ],
)
def test_what_answers_says_what_is_wrong(status: int, content: Any, sentence: str) -> None:
    """Another server, and an exporter that refuses, are told apart."""
    with answering({DRY_RUN_PATH: (status, content)}) as endpoint:
        assert problem(endpoint).startswith(sentence.format(endpoint=endpoint, status=status))


def test_server_that_hangs_is_not_awaited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be an exporter that starts, so a gate would wait."""
    monkeypatch.setattr("rank_probe.check.TIMEOUT_SECONDS", 0.2)
    with saying(None) as endpoint:
        found, may_pass = _look({"RANKSKEW_EXPORTER": endpoint}, False)

    assert found["problem"].startswith(f"nothing answers at {endpoint} (timed out): start one")
    assert may_pass


def test_token_is_shown(tmp_path: Path) -> None:
    """A listener that wants a token gets the one that ranks would send."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    flags = ("--ingest.listen-address=127.0.0.1:0", f"--ingest.token-file={token}")
    with running_exporter(tmp_path / "e.sock", *flags) as running:
        endpoint = f"http://127.0.0.1:{running.tcp_port()}"
        assert "wants the token" in problem(endpoint)
        assert look(endpoint, RANKSKEW_TOKEN_FILE=str(token))["ok"]


@pytest.mark.parametrize("seconds_ago", [[], [301.0, 4_000.0]])
def test_nobody_scrapes(seconds_ago: list[float]) -> None:
    """It is a warning, since ranks can report; with --require-scrape it is a failure."""
    scraped = [SCRAPED | {"seconds_ago": seconds} for seconds in seconds_ago]
    with answering({DRY_RUN_PATH: (200, judged(scraped=scraped))}) as endpoint:
        found = look(endpoint)
        assert found["ok"]
        assert found["warnings"] == [
            "nobody has scraped this exporter in the last 5 minutes: add the node to "
            "scrape_configs in Prometheus",
        ]
        assert problem(endpoint, require_scrape=True) == found["warnings"][0]


@pytest.mark.parametrize(
    ("endpoint", "sentence", "may_pass"),
    [
        ("nonsense", "it must be unix:/path/to.sock or http://127.0.0.1:PORT", False),
        (f"http://{'x' * 300}:1", "cannot be asked", False),
        (
            "http://127.0.0.1:1",
            "nothing answers at http://127.0.0.1:1 (Connection refused): start one",
            True,
        ),
        ("unix:{folder}/e.sock", "there is no socket {folder}/e.sock (No such file", True),
        # In a container the directory is not mounted.
        ("unix:{folder}/no/e.sock", "no/e.sock (No such file or directory): start one", True),
        # A directory that a mount created in its place is not waited for.
        ("unix:{folder}", "is not a socket: set RANKSKEW_EXPORTER", False),
        ("unix:{folder}/file/e.sock", "file/e.sock (Not a directory): start one", False),
    ],
)
def test_endpoint_without_anybody_is_one_sentence(
    endpoint: str, sentence: str, may_pass: bool, tmp_path: Path
) -> None:
    """A wrong address is told apart from one where nobody listens, which may pass."""
    (tmp_path / "file").touch()
    endpoint = endpoint.format(folder=tmp_path)

    assert sentence.format(folder=tmp_path) in problem(endpoint)
    assert _look({"RANKSKEW_EXPORTER": endpoint}, False)[1] == may_pass


def test_socket_that_may_not_be_written_is_shown_with_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has the user, the mode, and what to do."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    path.chmod(0o660)
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)

    said = problem(f"unix:{path}")
    assert said.startswith(f"user 4000000 may not write to {path} (mode 0660): start ")


def test_wait_ends_when_the_exporter_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gate waits for an exporter that starts late, and says once what it waits for."""
    monkeypatch.setattr("rank_probe.check.POLL_SECONDS", 0.05)
    found: list[dict[str, Any]] = []
    endpoint = f"unix:{tmp_path}/late/e.sock"

    def wait() -> None:
        found.append(check({"RANKSKEW_EXPORTER": endpoint}, 60.0))

    thread = threading.Thread(target=wait)
    thread.start()
    with running_exporter(tmp_path / "late" / "e.sock"):
        thread.join()

    assert found[0]["ok"]
    waiting = "rank-probe: waiting for up to 60 s: there is no socket "
    assert capsys.readouterr().err.startswith(waiting)


def test_wait_ends_with_its_time_and_is_not_for_what_cannot_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exporter that never comes is a failure after that time, a wrong address at once."""
    monkeypatch.setattr("rank_probe.check.POLL_SECONDS", 0.05)
    found = check({"RANKSKEW_EXPORTER": "unix:/nowhere/e.sock"}, 0.2)
    assert "there is no socket /nowhere/e.sock" in found["problem"]

    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("waited"))
    assert check({"RANKSKEW_EXPORTER": "nonsense"}, 60.0)["problem"]


RANK = {"RANK": "3", "WORLD_SIZE": "4", "RANKSKEW_JOB_ID": "j"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `rank-probe check` with *arguments*."""
    return subprocess.run(
        [sys.executable, "-m", "rank_probe", "check", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


def test_rank_that_can_report_passes() -> None:
    """A line for each thing that was found, and status 0."""
    with answering({DRY_RUN_PATH: (200, judged())}) as endpoint:
        done = run(RANKSKEW_EXPORTER=endpoint, **RANK)

    assert done.stdout == (
        f"probe: rankskew {__version__}\n"
        "job: 'j', from RANKSKEW_JOB_ID\n"
        "rank: 3 of 4 in job 'j', attempt 0, from RANK and WORLD_SIZE\n"
        f"exporter: rankskew {__version__} at {endpoint} accepts this rank\n"
        "scraped: by 10.0.0.7 (Prometheus/2.53.0) 12 s ago\n"
        "ok: ranks can report\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_require_scrape_closes_the_gate() -> None:
    """What is a warning without the option is a failure with it."""
    with answering({DRY_RUN_PATH: (200, judged(scraped=[]))}) as endpoint:
        warned = run(RANKSKEW_EXPORTER=endpoint)
        failed = run("--require-scrape", RANKSKEW_EXPORTER=endpoint)

    assert (warned.returncode, failed.returncode) == (0, 1)
    assert "warning: nobody has scraped this exporter" in warned.stdout
    assert "problem: nobody has scraped this exporter" in failed.stdout
    assert "warning" not in failed.stdout


def test_json_has_what_the_lines_say(tmp_path: Path) -> None:
    """Scripts get one document, whether ranks can report or not; docs/operating.md has it all."""
    with answering({DRY_RUN_PATH: (200, judged(would_accept=False, reason="No."))}) as endpoint:
        refused = run("--json", RANKSKEW_EXPORTER=endpoint, **RANK)
    alone = run("--json", RANKSKEW_EXPORTER=f"unix:{tmp_path}/absent.sock")

    said = json.loads(refused.stdout)
    assert refused.returncode == 1
    assert (said["ok"], said["problem"]) == (False, "the exporter would refuse this rank: No")
    assert said["exporter"]["would_accept"] is False
    assert said["rank"]["rank"] == 3
    assert said["job"] == {"job_id": "j", "source": "RANKSKEW_JOB_ID"}
    assert json.loads(alone.stdout).keys() == said.keys()
    page = (ROOT / "docs" / "operating.md").read_text()
    section = page.partition("## Before a job starts")[2].partition("\n## ")[0]
    parts = [said, said["probe"], said["job"], said["rank"], said["exporter"], SCRAPED]
    assert {name for part in parts for name in part if f"`{name}`" not in section} == set()
