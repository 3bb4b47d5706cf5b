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

from rankskew.__main__ import main
from rankskew.commands import top
from rankskew.commands.mcp import LARGEST_CHARACTERS, server
from tests.exporter.running import PATIENCE_SECONDS, ROOT
from tests.rankskew.documents import CAUSE, hung, late, live, straggler
from tests.rankskew.servers import exporter_of
from tests.rankskew.test_compare import STEADY, answering

MCP: Final = ("-m", "rankskew", "mcp")
NOWHERE: Final = ("--exporter=http://127.0.0.1:1",)
Arguments = tuple[str, ...]
PLAYBOOK: Final = "https://github.com/rankskew/rankskew/blob/main/docs/playbook.md"
Captured = pytest.CaptureFixture[str]
Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def node() -> Iterator[Arguments]:
    """The exporter of a node with two jobs."""
    known = straggler(late=[late(2, cause=CAUSE)])
    with exporter_of(live(known, hung())) as url:
        yield (f"--exporter={url}",)


def called(servers: Arguments, *calls: Call) -> list[CallToolResult]:
    """Return what the SDK's client gets."""
    serving = server(servers)

    async def call() -> list[CallToolResult]:
        async with Client(serving) as client:
            return [await client.call_tool(*each) for each in calls]

    return asyncio.run(call())


def document(servers: Arguments, name: str, /, **arguments: Any) -> Any:
    """Return the document of a tool; its text is the same as JSON."""
    (result,) = called(servers, (name, arguments))
    assert not result.is_error, result
    assert json.loads(text(result)) == result.structured_content
    return result.structured_content


def refusal(servers: Arguments, name: str, /, **arguments: Any) -> str:
    (result,) = called(servers, (name, arguments))
    assert result.is_error
    return text(result)


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def printed(capsys: Captured, *arguments: str) -> Any:
    """Return the document that a command prints."""
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


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


def test_it_ends_with_its_stdin_and_with_an_interrupt() -> None:
    """Whoever tries it in a terminal can leave."""
    piped = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, *MCP], **piped) as ended,  # type: ignore[call-overload]
        subprocess.Popen([sys.executable, *MCP], **piped) as interrupted,  # type: ignore[call-overload]
    ):
        try:
            assert ended.communicate("", timeout=PATIENCE_SECONDS) == ("", None)
            assert ended.returncode == 0
            list_tools = '{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
            print(list_tools, file=interrupted.stdin, flush=True)
            interrupted.stdout.readline()
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.wait(PATIENCE_SECONDS) == -signal.SIGINT
        finally:
            ended.kill()
            interrupted.kill()


# ---- Its tools -----------------------------------------------------------------------------------


def test_jobs_and_diagnosis_are_those_of_the_commands(node: Arguments, capsys: Captured) -> None:
    """A job that is named has its ranks, with their places; each late rank has its cause.

    What is null or empty counts as left out.
    """
    jobs = document(node, "jobs")
    (here,) = document(node, "jobs", job="llama")["jobs"]
    (found,) = here["late"]
    places = {rank["rank"]: (rank["node"], rank["pid"]) for rank in here["ranks"]}
    given = document(node, "diagnose", job="llama", at=None, cluster="")

    assert timeless(jobs) == timeless(printed(capsys, "top", *node))
    assert not any("ranks" in each for each in jobs["jobs"])
    assert here["sentence"] == "Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it."
    assert (found["rank"], places[2]) == (2, ("node1", 4002))
    assert found["cause"]["sentence"] == CAUSE["sentence"]
    assert timeless(given) == timeless(printed(capsys, "diagnose", "--job", "llama", *node))
    assert given["findings"][0]["links"][0] == f"{PLAYBOOK}#input"


def test_comparison_is_that_of_the_command(capsys: Captured) -> None:
    """Also one that cannot tell, and says why."""
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
    ("call", "sentence"),
    [
        (("runbook", {"name": "gcc"}), "there is no runbook 'gcc'; there are rankskew"),
        (("diagnose", {}), "There are 2 jobs; name one with job: llama, vision."),
        (("diagnose", {"job": "--help"}), "There is no job '--help'; there are: llama, vision."),
        (("jobs", {"job": "x"}), "There is no job 'x'; there are: llama, vision."),
        (("compare", {"compare": "1..2"}), "this needs prometheus, and rankskew mcp was started w"),
        (("diagnose", {"at": "14:05"}), "at needs prometheus: only that has a history"),
        (
            ("diagnose", {"at": "noon"}),
            "argument at: 'noon' is not a time; give 14:05, 2026-01-31T14:05",
        ),
    ],
)
def test_bad_argument_is_one_sentence(node: Arguments, call: Call, sentence: str) -> None:
    """In the words of a tool, not of a command line."""
    said = refusal(node, call[0], **call[1])

    assert said.startswith(sentence)
    assert "\n" not in said
    assert "--help" not in said.removeprefix(sentence)


@pytest.mark.parametrize("name", ["jobs", "diagnose", "compare"])
def test_one_cluster_is_asked_if_the_server_is_for_one(name: str) -> None:
    """Whoever asks for another is refused, before anything is asked."""
    eu = ("--prometheus=http://127.0.0.1:1", "--cluster=eu")
    given = {"compare": "-30m..-10m"} if name == "compare" else {}

    assert "for cluster 'eu' only" in refusal(eu, name, **given, cluster="us")
    assert "does not answer" in refusal(eu, name, **given)
    assert "does not answer" in refusal(eu, name, **given, cluster="eu")


def test_tool_that_breaks_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, node: Arguments
) -> None:
    """The traceback is for whoever runs the server."""

    def broken(*given: object, **options: object) -> str:
        raise ZeroDivisionError("s3cret")

    monkeypatch.setattr(top, "as_json", broken)

    assert refusal(node, "jobs") == "Error executing tool jobs"
    assert "s3cret" in caplog.text
