"""`rankskew mcp`: its tools as an assistant sees them, in the words of the commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import CallToolResult, TextContent

from rankskew.client import fetch
from rankskew.commands import top
from rankskew.commands.mcp import LARGEST_CHARACTERS, server
from tests.exporter.running import PATIENCE_SECONDS, ROOT
from tests.rankskew.documents import CAUSE, hung, late, live, straggler
from tests.rankskew.servers import exporter_of
from tests.rankskew.test_compare import STEADY, answering
from tests.rankskew.views import printed

MCP: Final = ("-m", "rankskew", "mcp")
NOWHERE: Final = ("--exporter=http://127.0.0.1:1",)
Arguments = tuple[str, ...]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def node() -> Iterator[Arguments]:
    """The exporter of a node with two jobs."""
    known = straggler(late=[late(2, cause=CAUSE)])
    with exporter_of(live(known, hung())) as url:
        yield (f"--exporter={url}",)


def called(servers: Arguments, name: str, arguments: dict[str, Any]) -> CallToolResult:
    """Return what the SDK's client gets."""
    serving = server(servers)

    async def call() -> CallToolResult:
        async with Client(serving) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(call())


def document(servers: Arguments, name: str, /, **arguments: Any) -> Any:
    """Return the document of a tool; its text is the same as JSON."""
    result = called(servers, name, arguments)
    assert not result.is_error, result
    assert json.loads(text(result)) == result.structured_content
    return result.structured_content


def refusal(servers: Arguments, name: str, /, **arguments: Any) -> str:
    result = called(servers, name, arguments)
    assert result.is_error
    return text(result)


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def timeless(found: dict[str, Any]) -> dict[str, Any]:
    """Return it without the moment at which it was asked."""
    return {
        key: each for key, each in found.items() if key not in ("timestamp_seconds", "at_seconds")
    }


# ---- As a process --------------------------------------------------------------------------------


def test_assistant_that_starts_it_asks_over_stdio(node: Arguments) -> None:
    """There are four tools, read-only, each with the arguments that it takes, and no others."""
    parameters = StdioServerParameters(
        command=sys.executable, args=[*MCP, *node], env=dict(os.environ), cwd=ROOT
    )

    async def asked() -> Any:
        async with Client(parameters) as client:
            return (await client.list_tools()).tools, await client.call_tool("jobs", {})

    listed, found = asyncio.run(asked())
    tools = {tool.name: tool for tool in listed}

    assert list(tools) == ["jobs", "diagnose", "compare", "runbook"]
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    schema = tools["compare"].input_schema
    assert list(schema["properties"]) == ["compare", "window", "job", "cluster"]
    assert schema["required"] == ["compare"]
    assert timeless(found.structured_content) == timeless(document(node, "jobs"))


def test_it_ends_with_an_interrupt() -> None:
    """Whoever tries it in a terminal can leave."""
    with subprocess.Popen(
        [sys.executable, *MCP], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            list_tools = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
            print(list_tools, file=process.stdin, flush=True)
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == -signal.SIGINT
        finally:
            process.kill()


# ---- Its tools -----------------------------------------------------------------------------------


def test_jobs_and_diagnosis_are_those_of_the_commands(node: Arguments, capsys: Captured) -> None:
    """A job that is named has its ranks; what is null or empty counts as left out."""
    jobs = document(node, "jobs")
    here = document(node, "jobs", job="llama")
    given = document(node, "diagnose", job="llama", at=None, cluster="")

    assert timeless(jobs) == timeless(printed(capsys, "top", *node))
    assert timeless(here) == timeless(printed(capsys, "top", "--job", "llama", *node))
    assert timeless(given) == timeless(printed(capsys, "diagnose", "--job", "llama", *node))


def test_comparison_is_that_of_the_command(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that cannot tell, and says why; a Prometheus has as long for its answers."""
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 1e-6)
    everywhere = {"": [({"job_id": "llama", "rank": "0"}, 4.0)]}
    with answering(STEADY, everywhere).serve() as url:
        asked = (f"--prometheus={url}",)
        given = document(asked, "compare", compare="1600..1700", window="10m")
        assert given == printed(capsys, "compare", "1600..1700", "--prometheus", url)

    assert given["why"].startswith("Before (1970-01-01 00:16:40 to 00:26:40 UTC) has a restart")


def test_runbooks_are_the_pages() -> None:
    """The whole page of the longest fits; its name is known in any case."""
    page = document(NOWHERE, "runbook", name="rankskewstraggler")
    cause = document(NOWHERE, "runbook", name="gc")

    assert page["name"] == "rankskewstraggler"
    assert page["markdown"].startswith("# RankskewStraggler\n")
    assert "cut" not in page
    assert "# " in cause["markdown"]


def test_large_fleet_fits() -> None:
    with exporter_of(live(*(straggler(f"job-{each}") for each in range(100)))) as url:
        found = document((f"--exporter={url}",), "jobs")

    assert found["cut"].startswith(f"lists have their first {len(found['jobs'])} entries")
    assert len(json.dumps(found, separators=(",", ":"), ensure_ascii=False)) <= LARGEST_CHARACTERS


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("runbook", {"name": "gcc"}, "there is no runbook 'gcc'; there are rankskew"),
        ("diagnose", {}, "There are 2 jobs; name one with job: llama, vision."),
        ("diagnose", {"job": "--help"}, "There is no job '--help'; there are: llama, vision."),
        ("compare", {"compare": "1..2"}, "this needs prometheus, and rankskew mcp was started w"),
        ("diagnose", {"at": "14:05"}, "at needs prometheus: only that has a history"),
        ("diagnose", {"at": "noon"}, "argument at: 'noon' is not a time; give 14:05, 2026-01-31T1"),
    ],
)
def test_bad_argument_is_one_sentence(
    node: Arguments, name: str, arguments: dict[str, Any], sentence: str
) -> None:
    """In the words of a tool, not of a command line."""
    said = refusal(node, name, **arguments)

    assert said.startswith(sentence)
    assert "\n" not in said
    assert "--help" not in said.removeprefix(sentence)


def test_one_cluster_is_asked_if_the_server_is_for_one() -> None:
    """Whoever asks for another is refused, before anything is asked."""
    eu = ("--prometheus=http://127.0.0.1:1", "--cluster=eu")

    assert "for cluster 'eu' only" in refusal(eu, "jobs", cluster="us")
    assert "does not answer" in refusal(eu, "jobs")
    assert "does not answer" in refusal(eu, "jobs", cluster="eu")


def test_tool_that_breaks_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, node: Arguments
) -> None:
    """The traceback is for whoever runs the server."""

    def broken(*given: object, **options: object) -> str:
        raise ZeroDivisionError("s3cret")

    monkeypatch.setattr(top, "as_json", broken)

    assert refusal(node, "jobs") == "Error executing tool jobs"
    assert "s3cret" in caplog.text
