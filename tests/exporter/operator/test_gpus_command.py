"""`rankskew gpus` reaches a real exporter and waits until it lets go, or says why not."""

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.operator import gpus_command
from rankskew.__main__ import main
from tests.exporter.running import RunningExporter, wait_until


def gpus(exporter: RunningExporter, *arguments: str) -> int:
    return main(["gpus", *arguments, f"--endpoint=unix:{exporter.operator_path}"])


def test_release_and_resume(exporter: RunningExporter, capsys: pytest.CaptureFixture[str]) -> None:
    """When release returns the worker has ended; resume brings it back."""
    wait_until(lambda: "\nrankskew_gpus_visible 0.0" in exporter.metrics())

    assert gpus(exporter, "release", "--for", "30m") == 0
    assert capsys.readouterr().out == (
        "the exporter has closed the GPUs for 30m: reset or reconfigure them,"
        " then run rankskew gpus resume\n"
    )
    page = exporter.metrics()
    assert "\nrankskew_nvml_released 1.0" in page
    assert "\nrankskew_nvml_worker_up 0.0" in page
    assert "\nrankskew_gpus_visible " not in page
    assert exporter.get("/-/ready")[0] == 200

    assert gpus(exporter, "resume") == 0
    wait_until(lambda: "\nrankskew_gpus_visible 0.0" in exporter.metrics())
    assert "\nrankskew_nvml_released 0.0" in exporter.metrics()
    assert "GPUs released for 1800 s" in "\n".join(exporter.log)


def test_forget_says_how_many(
    exporter: RunningExporter, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a node without missing GPUs, none is forgotten."""
    assert gpus(exporter, "forget") == 0
    assert capsys.readouterr().out == "0 GPUs are no longer expected\n"


def test_orders_for_scripts(exporter: RunningExporter, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json each action prints one document."""
    said = []
    for arguments in (["forget"], ["release", "--for", "5m"], ["resume"]):
        assert gpus(exporter, *arguments, "--json") == 0
        said.append(json.loads(capsys.readouterr().out))

    assert said == [
        {"action": "forget", "forgotten": 0},
        {"action": "release", "seconds": 300.0},
        {"action": "resume"},
    ]


def test_long_release_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that needs seconds to end is awaited aloud, once."""
    answers = iter([{"released": False}] * 3 + [{"released": True}])
    monkeypatch.setattr(gpus_command, "post", lambda *_: (200, next(answers)))
    monkeypatch.setattr(gpus_command, "QUIET_SECONDS", 0.0)

    assert main(["gpus", "release", "--endpoint=unix:/x"]) == 0
    assert capsys.readouterr().err == (
        "rankskew: waiting for the exporter to close the GPUs, for up to 10 s\n"
    )


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 2) -> str:
    """Return the one line with which the command ends."""
    assert main(["gpus", *arguments]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def test_mistake_is_one_line(
    exporter: RunningExporter, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A wrong action or time, no exporter, or another listener: one clear sentence each."""
    where = f"--endpoint=unix:{exporter.operator_path}"

    assert "invalid choice: 'reset'" in complaint(capsys, "reset")
    assert "'soon' is not a duration" in complaint(capsys, "release", "--for", "soon", where)
    assert "at most 86400" in complaint(capsys, "release", "--for", "25h", where)
    nobody = complaint(capsys, "release", f"--endpoint=unix:{tmp_path}/absent")
    assert "no exporter answers at" in nobody
    web = complaint(capsys, "resume", f"--endpoint=http://127.0.0.1:{exporter.port}")
    assert "answers 404: it takes no orders" in web
    ingest = complaint(capsys, "resume", f"--endpoint=unix:{exporter.socket_path}")
    assert "Not Found: this serves POST to /v1/snapshots" in ingest


def test_worker_that_does_not_end_is_no_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command never asks for a reset while a process of the exporter has a GPU open."""

    def post(path: str, body: bytes, endpoint: str) -> tuple[int, dict[str, Any]]:
        return 200, {"released": False}

    monkeypatch.setattr(gpus_command, "post", post)
    monkeypatch.setattr(gpus_command, "LET_GO_SECONDS", 0.2)

    assert "the process that reads the GPUs does not end" in complaint(
        capsys, "release", "--endpoint=unix:/x", status=1
    )
