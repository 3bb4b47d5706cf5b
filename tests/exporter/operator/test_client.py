"""`rankskew control` reaches a real exporter, or says in one line why not."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.operator import client
from exporter.settings import Settings
from rankskew.__main__ import main
from tests.exporter.running import RunningExporter, counted, running_exporter, wait_until
from tests.exporter.snapshots import snapshot
from tests.rankskew.test_cli import EVERY, without

Printed = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs a command that must end well; returns what it prints."""

    def printed(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return printed


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Printed:
    """Runs a command that must fail; returns the one line with which it ends."""

    def complaint(*arguments: str, status: int = 2) -> str:
        assert main(list(arguments)) == status
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.count("\n") == 1
        return output.err

    return complaint


def push(exporter: RunningExporter, job_id: str, **changes: int) -> tuple[int, dict[str, str]]:
    status, answer = exporter.push(snapshot(job_id=job_id, **changes).to_json())
    return status, answer


def test_order_reaches_the_rank(
    exporter: RunningExporter, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank hears of the operator's level at its next push; the command finds what it finds."""
    for rank in (0, 1):
        push(exporter, "controlled", rank=rank)
    monkeypatch.setenv("RANKSKEW_EXPORTER", f"unix:{exporter.socket_path}")

    assert printed("control", "controlled", "off") == (
        "2 ranks of job 'controlled' on this node: level off within about a second\n"
    )
    one = printed("control", "controlled", "detail", "--rank", "1")
    assert one.startswith("1 rank of job 'controlled'")
    answers = [push(exporter, "controlled", rank=rank, sequence=2) for rank in (0, 1)]
    assert answers == [(200, {"level": "off"}), (200, {"level": "detail"})]
    assert json.loads(printed("control", "controlled", "off", "--json")) == {
        "schema": "control/1",
        "job_id": "controlled",
        "level": "off",
        "rank": None,
        "ranks": 2,
    }
    # The command needs no package of an extra.
    ended = without(EVERY, "control", "controlled", "off")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_mistake_is_one_line(exporter: RunningExporter, complaint: Printed, tmp_path: Path) -> None:
    """An unknown job, rank, level, action or time, a wrong endpoint or none: one sentence each."""
    push(exporter, "mistaken")
    ingest = f"--exporter=unix:{exporter.socket_path}"
    operator = f"--exporter=unix:{exporter.operator_path}"
    web = f"--exporter=http://127.0.0.1:{exporter.port}"
    absent = f"--exporter=unix:{tmp_path}/absent"
    for sentence, arguments in (
        ("No rank of job 'misteaken' runs on this node", ["control", "misteaken", "off", ingest]),
        ("has no rank 9", ["control", "mistaken", "off", "--rank=9", ingest]),
        ("invalid choice: 'loud'", ["control", "mistaken", "loud", ingest]),
        ("invalid int value: 'x'", ["control", "mistaken", "off", "--rank=x", ingest]),
        ("/absent: No such file or directory;", ["control", "mistaken", "off", absent]),
        ("it must be unix:/path", ["control", "mistaken", "off", "--exporter=host"]),
        ("answers 404: it takes no orders", ["control", "m", "off", web]),
        ("No rank of job", ["control", "absent", "off", "--json", ingest]),
        ("'soon' is not a duration", ["control", "--release-gpus", "--for", "soon", operator]),
        ("at most 86400", ["control", "--release-gpus", "--for", "25h", operator]),
        ("no exporter answers at", ["control", "--release-gpus", absent]),
        ("answers 404: it takes no orders", ["control", "--resume-gpus", web]),
        ("Not Found: this serves POST to /v1/snapshots", ["control", "--resume-gpus", ingest]),
    ):
        assert sentence in complaint(*arguments)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer is not HTTP"),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", "does not answer as an exporter does"),
        (b"HTTP/1.0 200 OK\r\n\r\n{", "does not answer as an exporter does"),
    ],
)
def test_another_service_is_told_from_an_exporter(
    complaint: Printed, answer: bytes, sentence: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # Closed with bytes unread, it would be reset.
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        where = f"--exporter=http://127.0.0.1:{server.getsockname()[1]}"
        assert sentence in complaint("control", "llama", "off", where)
        thread.join()


def test_token_guards_the_tcp_listener(
    tmp_path: Path, printed: Printed, complaint: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token TCP may listen everywhere, and the token never appears in a log."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    flags = ("--ingest.listen-address=0.0.0.0:0", f"--ingest.token-file={token}")
    with running_exporter(tmp_path / "e.sock", *flags) as running:
        body = snapshot(job_id="tcp").to_json()
        port = running.tcp_port()
        order = ["control", "tcp", "off", f"--exporter=http://127.0.0.1:{port}"]
        assert running.push_over_tcp(port, body)[0] == 401
        assert running.push_over_tcp(port, body, Authorization="Bearer s3cret")[0] == 200
        assert "wants the token" in complaint(*order)
        monkeypatch.setenv("RANKSKEW_TOKEN_FILE", str(token))
        assert "level off" in printed(*order)
        token.write_text("rotated")
        assert running.push_over_tcp(port, body, Authorization="Bearer s3cret")[0] == 401
        assert counted(running.metrics(), "unauthorized") == 3
        assert push(running, "unix") == (200, {})
    log = "\n".join(running.log)
    assert [word in log for word in ("s3cret", "rotated", "level off")] == [False, False, True]


@pytest.mark.parametrize("may_open", [True, False])
def test_order_goes_where_this_user_may_give_it(
    monkeypatch: pytest.MonkeyPatch, may_open: bool
) -> None:
    """Root orders as the operator; any other user where their own ranks push."""
    operator = Settings().operator_socket
    monkeypatch.setenv("RANKSKEW_EXPORTER", "unix:/ranks/push/here.sock")
    monkeypatch.setattr(
        "os.access", lambda path, mode: (path, mode) == (operator, os.W_OK) and may_open
    )

    expected = f"unix:{operator}" if may_open else "unix:/ranks/push/here.sock"
    assert client.control_endpoint() == expected


def test_gpus_are_released_and_resumed(exporter: RunningExporter, printed: Printed) -> None:
    """When release returns the worker has ended; resume brings it back."""
    where = f"--exporter=unix:{exporter.operator_path}"
    wait_until(lambda: "\nrankskew_gpus_visible 0.0" in exporter.metrics())

    assert printed("control", "--release-gpus", "--for", "30m", where) == (
        "the exporter has closed the GPUs for 30m: reset or reconfigure them,"
        " then run rankskew control --resume-gpus\n"
    )
    page = exporter.metrics()
    assert "\nrankskew_nvml_released 1.0" in page
    assert "\nrankskew_nvml_worker_up 0.0" in page
    assert "\nrankskew_gpus_visible " not in page
    assert exporter.get("/-/ready")[0] == 200

    assert (
        printed("control", "--resume-gpus", where)
        == "the exporter reads the GPUs again within seconds\n"
    )
    wait_until(lambda: "\nrankskew_gpus_visible 0.0" in exporter.metrics())
    assert "\nrankskew_nvml_released 0.0" in exporter.metrics()
    assert "GPUs released for 1800 s" in "\n".join(exporter.log)

    for arguments, answer in (
        (["--release-gpus", "--for", "5m"], {"gpus": "release", "seconds": 300.0}),
        (["--resume-gpus"], {"gpus": "resume"}),
    ):
        document = json.loads(printed("control", *arguments, "--json", where))
        assert document == {"schema": "control/1"} | answer


def test_long_release_says_once_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that does not end is no release: nobody is asked to reset a GPU that is open."""
    answers = iter([{"released": False}] * 3 + [{"released": True}])
    monkeypatch.setattr(client, "post", lambda *_: (200, next(answers)))
    monkeypatch.setattr(client, "QUIET_SECONDS", 0.0)

    assert main(["control", "--release-gpus", "--exporter=unix:/x"]) == 0
    waiting = "rankskew: waiting for the exporter to close the GPUs, for up to 10 s\n"
    assert capsys.readouterr().err == waiting

    monkeypatch.setattr(client, "post", lambda *_: (200, {"released": False}))
    monkeypatch.setattr(client, "QUIET_SECONDS", 1.0)
    monkeypatch.setattr(client, "LET_GO_SECONDS", 0.2)
    assert main(["control", "--release-gpus", "--exporter=unix:/x"]) == 2
    assert "the process that reads the GPUs does not end" in capsys.readouterr().err
