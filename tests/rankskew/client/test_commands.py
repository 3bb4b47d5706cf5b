"""Every command that asks a server reaches one that wants a token and a tenant."""

import subprocess
import sys
from email.message import Message
from pathlib import Path
from typing import Final

import pytest

from rankskew.__main__ import main
from tests.exporter.running import ROOT
from tests.rankskew.client.servers import Answer, json_answer, serving

COMMANDS: Final = [
    ("top", "--once", "--exporter", "{url}"),
    ("top", "--once", "--prometheus", "{url}"),
    ("diagnose", "--exporter", "{url}"),
    ("diagnose", "--prometheus", "{url}"),
    ("diagnose", "--prometheus", "{url}", "--at", "2026-11-23T07:45Z"),
    ("compare", "-40m..-10m", "--prometheus", "{url}", "--job", "a"),
    ("report", "--incidents", "--prometheus", "{url}"),
    ("report", "--job", "a", "--prometheus", "{url}"),
]


def nothing(path: str, form: dict[str, str]) -> Answer:
    if path.startswith("/api/v1/live"):
        return json_answer({"jobs": []})
    return json_answer({"status": "success", "data": {"result": [], "groups": []}})


def protected(headers: Message) -> Answer | None:
    if headers["Authorization"] == "Bearer s3cret" and headers["X-Scope-OrgID"] == "team-a":
        return None
    return 401, "text/plain", b"no org id"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_takes_a_token_and_a_tenant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """With them it is told what the server knows, here nothing; without them that it refuses."""
    (tmp_path / "http.yaml").write_text("authorization: {credentials: s3cret}")
    given = [f"--http.config.file={tmp_path}/http.yaml", "--header=X-Scope-OrgID: team-a"]
    said = []
    with serving(nothing, protected) as url:
        for options in (given, []):
            main([*(part.replace("{url}", url) for part in command), *options])
            said.append(capsys.readouterr().err)

    assert "refuses" not in said[0]
    assert "refuses us (401 Unauthorized): give a token or password with" in said[1]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--http.config.file=/nowhere.yaml"], "cannot read /nowhere.yaml: No such file or direc"),
        (["--header=X-Scope-OrgID"], "argument --header: expected 'NAME: VALUE'"),
        (["--header=Authorization: Bearer s3cret"], "the header Authorization cannot be set: tok"),
    ],
)
def test_wrong_option_is_said_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    """In one line; a token on the command line would be visible to all users."""
    assert main(["top", "--once", *options]) == 2
    said = capsys.readouterr().err

    assert problem in said
    assert said.count("\n") == 1
    assert "s3cret" not in said


def test_exporter_starts_without_the_client() -> None:
    """A node does not pay for what the commands need."""
    program = (
        "import sys, exporter.commands.exporter, exporter.server, exporter.wiring; "
        "sys.exit('urllib3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
