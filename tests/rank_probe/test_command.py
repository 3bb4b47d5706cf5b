"""The trainer's command: it runs a script with its stages timed, or says whether a rank can report.

Whatever is wrong is one sentence.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rank_probe.__main__ import main
from rank_probe.audit import command
from rank_probe.check import check
from rank_probe.command_line.grammar import USAGE
from rank_probe.version import __version__
from tests.exporter.node import Clock
from tests.exporter.running import ROOT, RunningExporter, running_exporter
from tests.exporter.snapshots import snapshot
from tests.rank_probe.sink import SILENCE, listening, listening_on_loopback, saying


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in *cwd*, as rank 0 of 1 for its launcher."""
    known = os.environ | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | environment
    words = [sys.executable, *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=known)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in this directory that says what it sees, and ends as an argument says."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(
        "import sys, helper\n"
        "print(__name__, sys.argv[1:], helper.VALUE)\n"
        "if 'raise' in sys.argv: raise RuntimeError('theirs')\n"
        "sys.exit(3 if '3' in sys.argv else 0)\n"
    )
    (tmp_path / "helper.py").write_text("VALUE = 42\n")
    return path


@pytest.mark.parametrize(
    ("words", "arguments", "status"),
    [
        (["train.py", "0", "--lr"], ["0", "--lr"], 0),
        (["run", "train.py", "raise", "--help"], ["raise", "--help"], 1),
        # deepspeed and torch.distributed.launch put it before the script's other arguments.
        (["--local_rank=0", "-m", "train", "3"], ["--local_rank=0", "3"], 3),
    ],
)
def test_script_runs_as_main_and_only_its_clean_end_marks_the_rank_finished(
    script: Path, words: list[str], arguments: list[str], status: int
) -> None:
    """It sees itself as __main__, its own argv and its own folder.

    A crashed rank goes silent, so that somebody hears of it; its status and error are its.
    """
    with listening(script.parent / "s") as sink:
        there = {"RANKSKEW_EXPORTER": sink.endpoint}
        done = python("-m", "rank_probe", *words, cwd=script.parent, **there)

    assert done.stdout == f"__main__ {arguments} 42\n"
    assert done.returncode == status
    assert ("RuntimeError: theirs" in done.stderr) is (status == 1)
    assert sink.snapshots[-1]["finished"] is (status == 0)


def test_help_and_version_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["run", "--help"], ["--version"]):
        assert main(words) == 0

    assert capsys.readouterr().out == f"{USAGE}\n" * 3 + f"rank-probe {__version__}\n"


WHAT = "expected a script, -m MODULE, check, audit or bench-collectives"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", WHAT),
        ("--local_rank=0", WHAT),
        ("-m", "-m must be followed by the name of a module"),
        ("run absent.py --lr", "there is no script 'absent.py' in "),
        ("-m absent.module", "there is no module 'absent'"),
        ("--nproc-per-node 2", "unknown option '--nproc-per-node'; "),
        ("check --wait 60", "argument --wait: '60' is not a duration such as 30s"),
        ("check --wai 5s", "unrecognized arguments: --wai 5s; "),
        ("bench-collectives --max-mib 0", "argument --max-mib: '0' is not a whole number above 0"),
        ("bench-collectives --textfile /absent/p.prom", "there is no directory /absent"),
        ("audit --timeout 0s", "argument --timeout: '0s' is not a duration abo"),
    ],
)
@pytest.mark.usefixtures("script")
def test_wrong_command_is_one_sentence(
    typed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what is wrong and what to do, without a traceback."""
    help = typed.split()[0] + " " if typed.startswith(("check", "audit", "bench")) else ""
    assert main(typed.split()) == 2
    output, errors = capsys.readouterr()

    assert errors.startswith(f"rank-probe: {said}")
    assert errors.count("\n") == 1
    assert errors.endswith(f"; see rank-probe {help}--help\n")
    assert output == ""


def test_fault_of_ours_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error in the command exits with status 2; Python's own 1 would mean a failed check."""
    monkeypatch.setattr(command, "run", lambda arguments: 1 // 0)

    assert main(["audit"]) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_commands_for_a_prolog_do_not_import_torch(tmp_path: Path) -> None:
    """A prolog has no time to import torch, and its node may not have torch installed."""
    program = (
        "import sys; from rank_probe.__main__ import main; "
        "main(['check']), main(['audit']); print('torch' in sys.modules)"
    )
    done = python("-c", program, cwd=tmp_path, WORLD_SIZE="")

    assert done.stdout.endswith("\nFalse\n")


# Counts the calls that would initialise a driver, on a host with a GPU as far as torch can tell.
SPY = """
import atexit, ctypes, json
from rank_probe.guest.imports import when_imported

calls = []
library = ctypes.CDLL

def load(name, *args, **kwargs):
    if "nvidia" in str(name):
        calls.append(name)
        raise OSError("not here")
    return library(name, *args, **kwargs)

def counted(name, answer):
    return lambda *args, **kwargs: calls.append(name) or answer

def watch(torch):
    for name, answer in (("_cuda_getDeviceCount", 1), ("_cuda_getDevice", 0), ("_cuda_init", None)):
        setattr(torch._C, name, counted(name, answer))
    torch._C._cuda_isInBadFork = lambda: False
    torch._C._cuda_getCurrentRawStream = counted("_cuda_getCurrentRawStream", 0)
    torch.cuda._lazy_init = counted("_lazy_init", None)

ctypes.CDLL = load
when_imported("torch", watch)
atexit.register(lambda: print(json.dumps(calls)))  # After the probe's end.
"""
TRAIN = """
import io, os, sys
was_imported = "torch" in sys.modules
os.environ |= {"OMP_NUM_THREADS": "1", "TORCH_DISTRIBUTED_DEBUG": "INFO"}
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from rank_probe import api

print(was_imported, torch.get_num_threads(), dist.get_debug_level().name)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
answers = iter([{}, {}, {}, {}, {"level": "off"}, {}])
for rows in DataLoader(torch.ones(16, 2), batch_size=2):
    model(rows).sum().backward()
    optimizer.step()
    if api._probe is not None:
        api._probe._after_push(next(answers, {"level": "stages"}))
        api._probe.snapshot()
torch.save(model.state_dict(), io.BytesIO())
dist.destroy_process_group()
"""


def test_unchanged_script_is_timed_and_no_driver_is_initialised(tmp_path: Path) -> None:
    """From the probe's start to its end: the script may yet choose its GPU, or fork its ranks.

    It also decides when torch is imported: what it sets for torch takes effect.
    """
    (tmp_path / "spy.py").write_text(SPY)
    (tmp_path / "train.py").write_text(TRAIN)
    program = "import spy; from rank_probe.__main__ import main; main(['train.py'])"
    with listening(tmp_path / "s") as sink:
        environment = {
            "RANKSKEW_EXPORTER": sink.endpoint,
            # Nobody names the rank, so the pusher asks torch for it, during its import too.
            "RANK": "",
            "OMP_NUM_THREADS": "2",
            "TORCH_DISTRIBUTED_DEBUG": "OFF",
            # torch then asks NVML first, and the driver where NVML does not answer.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "RANK_PROBE_TRACE": str(tmp_path),
        }
        done = python("-c", program, cwd=tmp_path, **environment)
    last = sink.snapshots[-1]

    assert done.stdout == "False 1 INFO\n[]\n", done.stderr
    assert (last["finished"], last["probe_errors"]) == (True, 0), done.stderr
    assert last["steps"] >= 4
    assert {"data", "forward", "backward", "optimizer"} <= set(last["stage_seconds"])


SCRAPED = {"address": "10.0.0.7", "agent": "Prometheus/2.53.0", "seconds_ago": 12.0}
NOBODY_SCRAPES = "nobody has scraped this exporter in the last 5 minutes"


def judged(**changes: Any) -> dict[str, Any]:
    """Return an exporter's answer to a dry run: accepted, and scraped a moment ago."""
    said = {"version": __version__, "would_accept": True, "result": "accepted", "reason": None}
    return said | {"unknown_fields": 0, "scraped": [SCRAPED]} | changes


@contextmanager
def answering(content: Any, status: int = 200) -> Iterator[str]:
    """Answer with *content* whatever is posted; return the endpoint."""
    with listening_on_loopback() as sink:
        sink.answer = content if isinstance(content, bytes) else json.dumps(content).encode()
        sink.status = status
        yield sink.endpoint


def look(endpoint: str, **environment: str) -> dict[str, Any]:
    return check({"RANKSKEW_EXPORTER": endpoint} | environment)


def problem(endpoint: str, **environment: str) -> str:
    """Return the one sentence of the problem that is found."""
    sentence = look(endpoint, **environment)["problem"]
    assert isinstance(sentence, str)
    assert "\n" not in sentence
    return sentence


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The gate's, for which time passes only while it waits."""
    clock = Clock(0.0)
    time = SimpleNamespace(monotonic=clock, sleep=clock.sleep, time=lambda: 1e9)
    monkeypatch.setattr("rank_probe.check.time", time)
    return clock


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExporter]:
    """A real exporter that nothing has scraped yet; over TCP it wants a token."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "token").write_text("s3cret")
    flags = ("--ingest.listen-address=127.0.0.1:0", f"--ingest.token-file={folder / 'token'}")
    with running_exporter(folder / "e.sock", *flags) as running:
        yield running


def test_exporter_that_accepts_is_found(exporter: RunningExporter) -> None:
    """Versions and scrapers come from a real exporter, which keeps nothing of it.

    A listener that wants a token gets the one that ranks would send.
    """
    endpoint = f"unix:{exporter.socket_path}"
    before = look(endpoint, RANK="3", WORLD_SIZE="4", SLURM_JOB_ID="77")
    assert (before["ok"], before["problem"]) == (True, None)
    assert before["job"] == {"job_id": "77", "source": "SLURM_JOB_ID"}
    assert before["rank"]["source"] == "RANK and WORLD_SIZE"
    assert NOBODY_SCRAPES in " ".join(before["warnings"])
    assert 'job_id="77"' not in exporter.metrics()
    after = check({"RANKSKEW_EXPORTER": endpoint}, require_scrape=True)

    assert (after["problem"], after["warnings"]) == (None, [])
    assert after["exporter"]["version"] == __version__
    assert [scraper["address"] for scraper in after["exporter"]["scraped"]] == ["127.0.0.1"]
    over_tcp = f"http://127.0.0.1:{exporter.tcp_port()}"
    assert "wants the token" in problem(over_tcp)
    token = exporter.socket_path.with_name("token")
    assert look(over_tcp, RANKSKEW_TOKEN_FILE=str(token))["ok"]


def test_check_beside_a_running_job_is_no_older_process(exporter: RunningExporter) -> None:
    """On the node of a restarted job, a person without a rank is told that ranks can report."""
    endpoint = f"unix:{exporter.socket_path}"
    exporter.push(snapshot(job_id="restarted", attempt=3, world_size=1).to_json())
    assert look(endpoint, RANKSKEW_JOB_ID="restarted")["ok"]
    # For a job that nothing can show, the exporter's own sentence says what is wrong.
    said = problem(endpoint, RANKSKEW_JOB_ID="x" * 200)
    assert said.startswith("the exporter would refuse this rank: Field job_id is wrong")


def test_wait_ends_when_the_exporter_is_up_or_its_time_is_over(
    exporter: RunningExporter,
    tmp_path: Path,
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gate waits for an exporter that starts late, and says once what it waits for."""
    late = tmp_path / "e.sock"
    known = {"RANKSKEW_EXPORTER": f"unix:{late}"}
    assert "there is no socket" in check(known, 5.0)["problem"]
    assert clock.seconds == 5.0

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.seconds == 15.0:
            late.symlink_to(exporter.socket_path)

    monkeypatch.setattr("rank_probe.check.time.sleep", sleep)
    assert check(known, 60.0)["ok"]
    first, second = capsys.readouterr().err.splitlines()

    assert clock.seconds == 15.0
    waiting = "rank-probe: waiting for up to {} s: there is no socket "
    assert first.startswith(waiting.format(5))
    assert second.startswith(waiting.format(60))


NO_JOIN = "the ranks of job 'j' do not compare their steps: "
IN_JOB = {"RANKSKEW_JOB_ID": "j"}
# By how the warning begins: what the exporter answers, and the rank's environment.
WARNINGS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # A newer exporter that accepts the rank does its work.
    f"the exporter is rankskew 9 and this probe {__version__}: use the": ({"version": "9"}, {}),
    "the exporter does not know 2 fields of this probe's snapshots": ({"unknown_fields": 2}, {}),
    "RANK_PROBE=0 turns the probe off here: no rank will report": ({}, {"RANK_PROBE": "0"}),
    "RANK_PROBE_LABELS has 'switch=', which": ({}, {"RANK_PROBE_LABELS": "rack=r12,switch"}),
    f"{NOBODY_SCRAPES}: add": ({"scraped": [SCRAPED | {"seconds_ago": 301.0}]}, {}),
    # As the job's running ranks say.
    f"{NO_JOIN}the probe says of_a_newer_release; ": ({"no_join": "of_a_newer_release"}, IN_JOB),
    f"{NO_JOIN}RANK_PROBE_JOIN=0 turns that off": ({}, IN_JOB | {"RANK_PROBE_JOIN": "0"}),
}


@pytest.mark.parametrize("warning", WARNINGS)
def test_what_may_go_wrong_later_is_a_warning(warning: str) -> None:
    """Such a condition gives exactly one warning, and ranks can still report."""
    answer, environment = WARNINGS[warning]
    with answering(judged(**answer)) as endpoint:
        found = look(endpoint, **environment)

    assert found["ok"]
    (said,) = found["warnings"]
    assert said.startswith(warning)


NO_EXPORTER = "what listens at {endpoint} is not where ranks report: it answers {status}; set "


@pytest.mark.parametrize(
    ("status", "content", "sentence"),
    [
        # Anything that speaks HTTP but is no exporter is named as that.
        (404, {"error": "Not Found."}, NO_EXPORTER),
        (200, b"<html>Welcome to nginx!</html>", NO_EXPORTER),
        (200, {"version": "1"}, NO_EXPORTER),
        (200, judged(scraped=[{"address": "x"}]), NO_EXPORTER),
        (200, b"[" * 100_000, NO_EXPORTER),
        # A refusal before the snapshot is read is passed on.
        (401, {"error": "It wants the token."}, "the exporter refuses: It wants the token"),
        (429, {"error": "Too often."}, "the exporter refuses: Too often"),
        (503, {"error": "Too many."}, "the exporter refuses: Too many"),
    ],
)
def test_what_answers_is_told_apart(status: int, content: Any, sentence: str, clock: Clock) -> None:
    """Another server, and an exporter that refuses, are told apart; a busy one is waited for."""
    with answering(content, status) as endpoint:
        assert problem(endpoint).startswith(sentence.format(endpoint=endpoint, status=status))
        check({"RANKSKEW_EXPORTER": endpoint}, 1.0)
    assert (clock.seconds > 0) == (status in (429, 503))


def test_server_that_hangs_is_not_awaited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rank_probe.check.TIMEOUT_SECONDS", 0.2)
    with saying(SILENCE) as endpoint:
        assert problem(endpoint).startswith(f"nothing answers at {endpoint} (timed out): start an")


@pytest.mark.parametrize(
    ("endpoint", "sentence", "passes"),
    [
        *(
            (wrong, "it must be unix:/path/to.sock or http://127.0.0.1:PORT", False)
            for wrong in ("nonsense", "unix:relative", "http://host", "x:1")
        ),
        (f"http://{'x' * 300}:1", "cannot be asked", False),
        ("http://127.0.0.1:1", "nothing answers at {at} (Connection refused): start an", True),
        ("unix:{folder}/e.sock", "there is no socket {folder}/e.sock (No such file", True),
        # A directory that a mount created in its place is not waited for.
        ("unix:{folder}", "is not a socket: set RANKSKEW_EXPORTER", False),
        ("unix:{folder}/file/e.sock", "file/e.sock (Not a directory): start an", False),
    ],
)
def test_endpoint_without_anybody_is_one_sentence(
    endpoint: str, sentence: str, passes: bool, tmp_path: Path, clock: Clock
) -> None:
    """A wrong address is told apart from one where nobody listens, which may pass."""
    (tmp_path / "file").touch()
    endpoint = endpoint.format(folder=tmp_path)

    assert sentence.format(folder=tmp_path, at=endpoint) in problem(endpoint)
    check({"RANKSKEW_EXPORTER": endpoint}, 1.0)
    assert (clock.seconds > 0) == passes


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


def test_check_prints_lines_or_one_document_and_closes_the_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each thing that was found; docs/operating.md has each field of the document.

    What is a warning without --require-scrape is a failure with it.
    """
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "RANKSKEW_JOB_ID": "j"}.items():
        monkeypatch.setenv(name, value)

    def run(answer: dict[str, Any], *words: str) -> tuple[int, str]:
        with answering(answer) as endpoint:
            monkeypatch.setenv("RANKSKEW_EXPORTER", endpoint)
            return main(["check", *words]), capsys.readouterr().out.replace(endpoint, "HERE")

    assert run(judged()) == (
        0,
        f"probe: rankskew {__version__}\n"
        "job: 'j', from RANKSKEW_JOB_ID\n"
        "rank: 3 of 4 in job 'j', attempt 0, from RANK and WORLD_SIZE\n"
        f"exporter: rankskew {__version__} at HERE accepts this rank\n"
        "scraped: by 10.0.0.7 (Prometheus/2.53.0) 12 s ago\n"
        "ok: ranks can report\n",
    )
    for words, status, kind in (((), 0, "warning"), (("--require-scrape",), 1, "problem")):
        ended, output = run(judged(scraped=[]), *words)
        assert ended == status
        assert [line.split(": ")[0] for line in output.splitlines()].count(kind) == 1
        assert f"{kind}: {NOBODY_SCRAPES}" in output
    ended, output = run(judged(would_accept=False, reason="No."), "--json")
    said = json.loads(output)
    assert ended == 1
    assert (said["ok"], said["problem"]) == (False, "the exporter would refuse this rank: No")
    assert said["exporter"]["would_accept"] is False
    assert said["rank"]["rank"] == 3
    assert said["job"] == {"job_id": "j", "source": "RANKSKEW_JOB_ID"}
    page = (ROOT / "docs" / "operating.md").read_text()
    section = page.partition("## Before a job starts")[2].partition("\n## ")[0]
    parts = [said, said["probe"], said["job"], said["rank"], said["exporter"], SCRAPED]
    assert {name for part in parts for name in part if f"`{name}`" not in section} == set()
