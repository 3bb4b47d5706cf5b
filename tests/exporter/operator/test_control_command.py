"""`rankskew control` reaches the ranks through a real exporter, or says in one line why not."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from exporter.operator.control_command import control_endpoint
from exporter.settings import Settings
from rankskew.__main__ import main
from tests.exporter.running import (
    RunningExporter,
    counted,
    running_exporter,
)
from tests.exporter.snapshots import snapshot
from tests.rankskew.test_cli import EVERY, without


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which the command ends."""
    assert main(["control", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_order_reaches_the_rank(
    exporter: RunningExporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rank hears of the operator's level at its next push."""
    exporter.push(snapshot(job_id="controlled").to_json())
    exporter.push(snapshot(job_id="controlled", rank=1).to_json())
    where = f"--endpoint=unix:{exporter.socket_path}"

    assert main(["control", "controlled", "off", where]) == 0
    assert capsys.readouterr().out == (
        "2 ranks of job 'controlled' on this node: level off within about a second\n"
    )
    assert main(["control", "controlled", "detail", "--rank", "1", where]) == 0
    assert capsys.readouterr().out.startswith("1 rank of job 'controlled'")
    answers = [
        exporter.push(snapshot(job_id="controlled", rank=rank, sequence=2).to_json())
        for rank in (0, 1)
    ]
    assert answers == [(200, {"level": "off"}), (200, {"level": "detail"})]


def test_order_for_scripts(exporter: RunningExporter, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the result is one document; a mistake is a line on stderr as ever."""
    exporter.push(snapshot(job_id="scripted").to_json())
    where = f"--endpoint=unix:{exporter.socket_path}"

    assert main(["control", "scripted", "off", "--json", where]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "job_id": "scripted",
        "level": "off",
        "rank": None,
        "ranks": 1,
    }
    assert "No rank of job" in complaint(capsys, "absent", "off", "--json", where)


def test_mistake_is_one_line(
    exporter: RunningExporter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An unknown job, rank or level, a wrong endpoint or no exporter: one clear sentence each."""
    exporter.push(snapshot(job_id="mistaken").to_json())
    where = f"--endpoint=unix:{exporter.socket_path}"

    assert "No rank of job 'misteaken' runs on this node" in complaint(
        capsys, "misteaken", "off", where
    )
    assert "has no rank 9" in complaint(capsys, "mistaken", "off", "--rank=9", where)
    assert "invalid choice: 'loud'" in complaint(capsys, "mistaken", "loud", where)
    assert "invalid int value: 'x'" in complaint(capsys, "mistaken", "off", "--rank=x", where)
    nobody = complaint(capsys, "mistaken", "off", f"--endpoint=unix:{tmp_path}/absent")
    assert "no exporter answers at" in nobody
    assert "No such file or directory" in nobody
    assert "it must be unix:/path" in complaint(capsys, "mistaken", "off", "--endpoint=host")
    web = complaint(capsys, "m", "off", f"--endpoint=http://127.0.0.1:{exporter.port}")
    assert "answers 404: it takes no orders" in web


def test_what_is_no_http_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Another service on that port is distinguished from an exporter."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        where = f"--endpoint=http://127.0.0.1:{server.getsockname()[1]}"
        assert "its answer is not HTTP" in complaint(capsys, "llama", "off", where)
        thread.join()


def test_environment_says_where(
    exporter: RunningExporter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a node where ranks find the exporter, the command finds it in the same way."""
    monkeypatch.setenv("RANKSKEW_EXPORTER", f"unix:{exporter.socket_path}")
    exporter.push(snapshot(job_id="found").to_json())

    assert main(["control", "found", "stages"]) == 0
    assert "level stages" in capsys.readouterr().out


def test_base_install_can_control(exporter: RunningExporter) -> None:
    """The command needs no package of an extra."""
    exporter.push(snapshot(job_id="bare").to_json())
    ended = without(EVERY, "control", "bare", "off", f"--endpoint=unix:{exporter.socket_path}")

    assert (ended.returncode, ended.stderr) == (0, "")


def test_token_guards_the_tcp_listener(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a token TCP may listen everywhere, and the token never appears in a log."""
    token = tmp_path / "token"
    token.write_text("s3cret")
    flags = ("--ingest.listen-address=0.0.0.0:0", f"--ingest.token-file={token}")
    with running_exporter(tmp_path / "e.sock", *flags) as running:
        body = snapshot(job_id="tcp").to_json()
        port = running.tcp_port()
        assert running.push_over_tcp(port, body)[0] == 401
        assert running.push_over_tcp(port, body, Authorization="Bearer s3cret")[0] == 200
        where = f"--endpoint=http://127.0.0.1:{port}"
        assert "wants the token" in complaint(capsys, "tcp", "off", where)
        monkeypatch.setenv("RANKSKEW_TOKEN_FILE", str(token))
        assert main(["control", "tcp", "off", where]) == 0
        token.write_text("rotated")
        assert running.push_over_tcp(port, body, Authorization="Bearer s3cret")[0] == 401
        assert counted(running.metrics(), "unauthorized") == 3
        assert running.push(snapshot(job_id="unix").to_json()) == (200, {})
    log = "\n".join(running.log)
    assert "s3cret" not in log
    assert "rotated" not in log
    assert "level off" in log


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--ingest.listen-address=0.0.0.0:0"], "is not a loopback address, and without a token"),
        (["--ingest.token-file=/nowhere"], "--ingest.token-file: cannot read /nowhere: No such"),
    ],
)
def test_exporter_does_not_start_open_to_anyone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], sentence: str
) -> None:
    """A public ingest without a token, or a token that cannot be read, ends the start."""
    quiet = [f"--ingest.socket={tmp_path}/e.sock", "--web.listen-address=127.0.0.1:0"]

    assert main(["exporter", *quiet, *flags]) == 2
    assert sentence in capsys.readouterr().err


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

    assert control_endpoint() == (f"unix:{operator}" if may_open else "unix:/ranks/push/here.sock")
