"""`rankskew mcp` as a process, asked by the SDK's client about a simulated fleet."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from rankskew.__main__ import main
from tests.exporter.running import ROOT

RANKSKEW: Final = (sys.executable, "-m", "rankskew")
Captured = pytest.CaptureFixture[str]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command of rankskew, and end it."""
    with subprocess.Popen(
        [*RANKSKEW, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def fleet() -> Iterator[str]:
    """The exporter of a simulated node on which rank 2 is late."""
    fault = ("--fault", "loader:node=0,gpu=2")
    with started("simulate", "--listen-address=127.0.0.1:0", "--nodes=1", "--gpus=4", *fault) as it:
        assert it.stdout is not None
        url = it.stdout.readline().rpartition(" ")[2].strip()
        yield f"{url}node/sim-00"


async def asked(client: Client) -> dict[str, Any]:
    """Return what each tool says of the fleet."""
    async with client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        given = {"runbook": {"name": "input"}, "compare": {"compare": "-40m..-10m"}}
        return {name: await client.call_tool(name, given.get(name, {})) for name in names}


def check(found: dict[str, Any]) -> None:
    """See that all tools say the same of the late rank, each in its way."""
    documents = {name: result.structured_content for name, result in found.items()}
    (job,) = documents["jobs"]["jobs"]
    (late,) = job["late"]
    finding = documents["diagnose"]["findings"][0]

    assert list(found) == ["jobs", "diagnose", "compare", "runbook"]
    assert (job["state"], job["culprit"]) == ("straggler", {"rank": 2, "stage": "data"})
    assert (late["rank"], finding["rank"], finding["what"]) == (2, 2, "input")
    assert documents["runbook"]["name"] == "input"
    assert found["compare"].is_error
    assert "needs prometheus" in found["compare"].content[0].text


def test_assistant_that_starts_it_asks_over_stdio(fleet: str) -> None:
    command = [*RANKSKEW[1:], "mcp", "--exporter", fleet]
    parameters = StdioServerParameters(
        command=RANKSKEW[0], args=command, env=dict(os.environ), cwd=ROOT
    )

    check(asyncio.run(asked(Client(parameters))))


def test_it_ends_with_its_stdin_and_with_an_interrupt() -> None:
    """Whoever tries it in a terminal can leave."""
    with started("mcp") as process:
        assert process.communicate("", timeout=30) == ("", "")
        assert process.returncode == 0
    with started("mcp") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print('{"jsonrpc":"2.0","id":1,"method":"tools/list"}', file=process.stdin, flush=True)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--cluster", "eu"], "--cluster needs --prometheus: an exporter knows no clusters"),
        (["--header", "Authorization: Bearer s3cret"], "the header Authorization cannot be set"),
        (["--prometheus", "http://u:s3cret@p"], "a password in a URL is visible to all users"),
    ],
)
def test_wrong_option_is_said_at_once(capsys: Captured, arguments: list[str], problem: str) -> None:
    """Not when an assistant asks."""
    assert main(["mcp", *arguments]) == 2
    said = capsys.readouterr().err

    assert problem in said
    assert "s3cret" not in said
