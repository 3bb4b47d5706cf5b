"""The tools as an assistant sees them: the words of the commands, or one sentence."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from rankskew.__main__ import main
from rankskew.mcp import ask
from rankskew.mcp.ask import AskedServers
from rankskew.mcp.bounded import LARGEST_CHARACTERS
from rankskew.mcp.server import server
from tests.rankskew.client.servers import exporter_of, serving
from tests.rankskew.client.test_commands import nothing, protected
from tests.rankskew.compare.test_from_prometheus import STEADY, answering, vector
from tests.rankskew.top.documents import CAUSE, hung, late, live, straggler
from tests.schemas import check

NOWHERE: Final = AskedServers(exporters=("http://127.0.0.1:1",))
PLAYBOOK: Final = "https://github.com/rankskew/rankskew/blob/main/docs/playbook"
Captured = pytest.CaptureFixture[str]
Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def node() -> Iterator[AskedServers]:
    """The exporter of a node with two jobs."""
    known = straggler(late=[late(2, cause=CAUSE)])
    with exporter_of(live(known, hung())) as url:
        yield AskedServers(exporters=(url,))


def called(servers: AskedServers, *calls: Call) -> list[CallToolResult]:
    """Return what the SDK's client gets."""

    async def call() -> list[CallToolResult]:
        async with Client(server(servers)) as client:
            return [await client.call_tool(*each) for each in calls]

    return asyncio.run(call())


def document(servers: AskedServers, name: str, /, **arguments: Any) -> Any:
    """Return the document of a tool; its text is the same as JSON."""
    (result,) = called(servers, (name, arguments))
    assert not result.is_error, result
    assert json.loads(text(result)) == result.structured_content
    return result.structured_content


def refusal(servers: AskedServers, name: str, /, **arguments: Any) -> str:
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


def test_tools_are_listed_as_read_only() -> None:
    """Each with the arguments that it takes, and no others."""

    async def listed() -> Any:
        async with Client(server(NOWHERE)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(listed())}

    assert list(tools) == ["jobs", "diagnose", "late_ranks", "compare", "runbook"]
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    schema = tools["compare"].input_schema
    assert list(schema["properties"]) == ["compare", "window", "job", "cluster", "limit"]
    assert (schema["required"], schema["additionalProperties"]) == (["compare"], False)


def test_jobs_are_those_of_top(node: AskedServers, capsys: Captured) -> None:
    given = document(node, "jobs")

    assert timeless(given) == timeless(
        printed(capsys, "top", *(f"--exporter={url}" for url in node.exporters))
    )


def test_diagnosis_is_that_of_the_command(node: AskedServers, capsys: Captured) -> None:
    """What is null or empty counts as left out."""
    given = document(node, "diagnose", job="llama", at=None, since="")
    command = ("diagnose", "--job", "llama", "--exporter", *node.exporters)

    assert timeless(given) == timeless(printed(capsys, *command))
    assert given["findings"][0]["links"][0] == f"{PLAYBOOK}/input.md"


def test_comparison_is_that_of_the_command(capsys: Captured) -> None:
    """Also one that cannot tell, and says why."""
    found = vector(({"job_id": "llama", "rank": "0"}, 4))
    with answering(STEADY, None, **{"": found}) as prometheus:
        asked = AskedServers(prometheus=prometheus.url)
        given = document(asked, "compare", compare="1600..1700", window="10m")
        command = ("diagnose", "--prometheus", prometheus.url, "--compare", "1600..1700")
        assert given == printed(capsys, *command)

    assert given["why"].startswith("Before (1970-01-01 00:16:40 to 00:26:40 UTC) has a restart")


def test_late_ranks_have_causes_places_and_links(node: AskedServers) -> None:
    """Of the jobs that have some; places of the job that is named."""
    check(document(node, "late_ranks"))
    check(document(node, "late_ranks", job="llama"))
    (everywhere,) = document(node, "late_ranks")["jobs"]
    (here,) = document(node, "late_ranks", job="llama")["jobs"]
    (found,) = here["late_ranks"]

    assert everywhere["late_ranks"][0]["rank"] == 2
    assert "pid" not in everywhere["late_ranks"][0]
    assert here["sentence"] == "Rank 2 is slow loading data; 1.90 of 8 GPUs wait for it."
    assert (found["rank"], found["node"], found["pid"]) == (2, "node1", 4002)
    assert found["cause"]["sentence"] == CAUSE["sentence"]
    assert found["links"][0] == f"{PLAYBOOK}/input.md"


def test_runbooks_are_the_pages_or_their_sections() -> None:
    """The whole page of the longest fits."""
    page = document(NOWHERE, "runbook", name="rankskewstraggler")
    part = document(NOWHERE, "runbook", name="RankskewStraggler", section="meaning")
    cause = document(NOWHERE, "runbook", name="gc")

    assert page["markdown"].startswith("# RankskewStraggler\n")
    assert "cut" not in page
    assert part["markdown"].startswith("## Meaning\n")
    assert part["markdown"] in page["markdown"]
    assert cause["link"] == f"{PLAYBOOK}/gc.md"
    assert "<!--" not in cause["markdown"]


def test_answer_is_cut_to_what_was_asked_for(node: AskedServers) -> None:
    found = document(node, "jobs", limit=1)

    assert [job["job_id"] for job in found["jobs"]] == ["vision"]
    assert "jobs: 1 of 2" in found["cut"]["what"]
    assert found["cut"]["for_less"].startswith("ask for less with cluster, limit;")


def test_large_fleet_fits() -> None:
    with exporter_of(live(*(straggler(f"job-{each}") for each in range(400)))) as url:
        found = document(AskedServers(exporters=(url,)), "jobs")

    assert found["cut"]["what"][0].startswith("jobs: ")
    assert len(json.dumps(found, separators=(",", ":"), ensure_ascii=False)) <= LARGEST_CHARACTERS


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("nope", {}), "there is no tool 'nope'; there are jobs, diagnose, late_ranks, compare, r"),
        (("jobs", {"jobb": "x"}), "jobs has no argument 'jobb': it takes cluster, limit"),
        (("jobs", {"limit": 0}), "limit: '0' is not a whole number of at least 1"),
        (("jobs", {"cluster": ["a"]}), "cluster must be one line of at most 500 characters"),
        (("jobs", {"cluster": "a\x00"}), "cluster must be one line of at most 500 characters"),
        (("compare", {}), "give compare: before and after: times such as 14:05..14:20"),
        (("runbook", {"name": "gcc"}), "there is no runbook 'gcc'; did you mean gc?"),
        (("runbook", {"name": "gc", "section": "Zzz"}), "there is no section 'Zzz'; there are How"),
        (("diagnose", {}), "There are 2 jobs; name one with job: llama, vision."),
        (("diagnose", {"job": "--help"}), "There is no job '--help'; there are: llama, vision."),
        (("late_ranks", {"job": "x"}), "There is no job 'x'; there are: llama, vision."),
        (("diagnose", {"at": "noon"}), "at: 'noon' is not a time; give 14:05, 2026-01-31T14:05"),
        (("diagnose", {"since": "5m"}), "since needs --prometheus: only that has a history"),
    ],
)
def test_bad_argument_is_one_sentence(node: AskedServers, call: Call, sentence: str) -> None:
    """In the words of a tool, not of a command line."""
    said = refusal(node, call[0], **call[1])

    assert said.startswith(sentence)
    assert "\n" not in said
    assert "--help" not in said.removeprefix(sentence)


def test_silent_server_is_one_sentence() -> None:
    assert refusal(NOWHERE, "jobs") == "http://127.0.0.1:1 does not answer: Connection refused."


def test_token_and_tenant_are_sent(tmp_path: Path) -> None:
    """As by the commands; without them an assistant is told that the server refuses."""
    (tmp_path / "http.yaml").write_text("authorization: {credentials: s3cret}")
    given = (f"--http.config.file={tmp_path}/http.yaml", "--header=X-Scope-OrgID: team-a")
    with serving(nothing, protected) as url:
        said = [
            refusal(AskedServers(prometheus=url, access=access), "jobs") for access in (given, ())
        ]

    assert "refuses" not in said[0]
    assert "refuses us (401 Unauthorized)" in said[1]


def program(monkeypatch: pytest.MonkeyPatch, path: Path, *lines: str) -> None:
    """Let a script of *lines* run instead of Python."""
    path.write_text("\n".join(["#!/bin/sh", *lines]))
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (("jobs", {}), ["top"]),
        (("diagnose", {"since": "2h", "cluster": "eu"}), ["diagnose", "--since=2h"]),
        (("late_ranks", {"job": "a b"}), ["top", "--job=a b"]),
        (("compare", {"compare": "-30m..-10m"}), ["diagnose", "--compare=-30m..-10m"]),
    ],
)
def test_one_cluster_is_asked_if_the_server_is_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Call, command: Sequence[str]
) -> None:
    """Whoever asks for another is refused."""
    program(
        monkeypatch, tmp_path / "python", "printf '{\"jobs\":[]}'", f'echo "$@" >{tmp_path}/asked'
    )
    eu = AskedServers("http://p", cluster="eu", access=("--header=A: b",))
    called(eu, call)
    asked = (tmp_path / "asked").read_text().split("rankskew ")[1].strip()
    name, *options = command

    wanted = [name, "--json", "--prometheus=http://p", "--header=A: b", *options, "--cluster=eu"]
    assert sorted(asked.split(" --")) == sorted(" ".join(wanted).split(" --"))
    assert "for cluster 'eu' only" in refusal(eu, call[0], **call[1] | {"cluster": "us"})


def test_command_that_breaks_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Captured
) -> None:
    """The traceback is for whoever runs the server."""
    program(monkeypatch, tmp_path / "python", "echo 'Traceback: s3cret' >&2", "exit 1")

    said = refusal(NOWHERE, "jobs")

    assert said == "rankskew top failed; what rankskew mcp writes to stderr says why"
    assert "Traceback: s3cret" in capsys.readouterr().err


def test_command_that_takes_too_long_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ask, "LONGEST_SECONDS", 0.2)
    program(monkeypatch, tmp_path / "python", f"echo $$ >{tmp_path}/pid", "exec sleep 60")

    assert refusal(NOWHERE, "jobs") == "rankskew top takes too long; ask about less"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cmdline").exists()
