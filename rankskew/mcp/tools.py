"""The tools: what each is for, its arguments, and which command answers it."""

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from exporter.causes.model import UNKNOWN
from exporter.commands.arguments import whole_positive
from rank_probe.wire.text import printable
from rankskew.diagnose.advice import advice
from rankskew.mcp.ask import AskedServers, ask
from rankskew.mcp.bounded import Document, ToolRefused, bounded
from rankskew.mcp.runbooks import PAGES, runbook

LONGEST_ARGUMENT: Final = 500
# What `late_ranks` says of a job, and of where a rank is.
OF_JOB: Final = ("job_id", "cluster", "state", "sentence", "world_size", "gpus_lost")
PLACE: Final = ("node", "local_rank", "gpu", "gpu_uuid", "pid")

Answer = Callable[[AskedServers, Mapping[str, str]], Awaitable[Document]]


@dataclass(frozen=True, slots=True)
class AssistantTool:
    """A tool: what it is for, its *arguments* with their meaning, and which of them it *needs*."""

    name: str
    sentence: str
    answer: Answer
    arguments: Mapping[str, str]
    needs: str | None = None


def of_command(command: str, shown: Callable[[Document], Document] = lambda found: found) -> Answer:
    """Return what answers with the document of *command*, or what *shown* makes of it."""

    async def answer(servers: AskedServers, given: Mapping[str, str]) -> Document:
        if servers.cluster is not None:
            if given.get("cluster", servers.cluster) != servers.cluster:
                raise ToolRefused(f"this server was started for cluster {servers.cluster!r} only")
            given = {**given, "cluster": servers.cluster}
        return shown(await ask(servers, command, given))

    return answer


def late_ranks(found: Document) -> Document:
    """Return of a document of `top` the late ranks of each job that has some, with links."""
    jobs = [job for job in found["jobs"] if job["late"] or "ranks" in job]
    return {**found, "schema": "late-ranks/1", "jobs": [_late_ranks(job) for job in jobs]}


def _late_ranks(job: Document) -> Document:
    places = {rank["rank"]: {name: rank[name] for name in PLACE} for rank in job.get("ranks", ())}
    late = [
        {**each, **places.get(each["rank"], {}), "links": _links(each["cause"])}
        for each in job["late"]
    ]
    return {name: job[name] for name in OF_JOB} | {"late_ranks": late}


def _links(cause: Document | None) -> list[str]:
    known = advice()
    return known[cause["cause"] if cause and cause["cause"] in known else UNKNOWN].links()


JOB: Final = {"job": "the id of the job; not needed if there is only one"}
CLUSTER: Final = {"cluster": "only this cluster of the Prometheus"}
TOOLS: Final = (
    AssistantTool(
        "jobs",
        "All training jobs, the most urgent first: the state of each in a word and a sentence, how "
        "many GPUs do nothing but wait, the late rank and its stage, why, and what to do first.",
        of_command("top"),
        CLUSTER,
    ),
    AssistantTool(
        "diagnose",
        "What is wrong with one job: what it loses, each finding with its place, line of code, "
        "cause and evidence, what to do in the order of least disturbance, links to runbooks, and "
        "what could not be judged.",
        of_command("diagnose"),
        JOB
        | CLUSTER
        | {
            "at": "at an earlier time: 2026-11-23T07:45Z, or Unix seconds; needs a Prometheus",
            "since": "over this time up to now, such as 2h, the worst first; needs a Prometheus",
        },
    ),
    AssistantTool(
        "late_ranks",
        "Every late rank of each job, or of one, the costliest first: its stage, how late it is, "
        "for how long, the GPUs that wait for it, the cause, what to do first, and links.",
        of_command("top", late_ranks),
        {"job": "only this job; with it, node, GPU and process of its ranks are told"} | CLUSTER,
    ),
    AssistantTool(
        "compare",
        "What a change did to a job: how much longer or shorter its steps take, with a 95 % "
        "interval, and whether that is certain. Needs a Prometheus.",
        of_command("diagnose"),
        {
            "compare": "before and after: times such as 14:05..14:20 (UTC), periods "
            "13:50/14:05..14:20/14:40, or job:OLD..job:NEW",
            "window": "how long before and after is compared, such as 10m (the default)",
        }
        | JOB
        | CLUSTER,
        needs="compare",
    ),
    AssistantTool(
        "runbook",
        "The runbook of an alert, or the page of the playbook on a cause of late ranks: what it "
        "means, how to tell, what to do, false alarms.",
        runbook,
        {"name": f"one of {', '.join(PAGES)}", "section": "only this section, by its heading"},
        needs="name",
    ),
)


async def answer(servers: AskedServers, name: str, given: Mapping[str, Any]) -> Document:
    """Return what the tool *name* answers with the arguments *given*; raises ToolRefused."""
    tool = next((each for each in TOOLS if each.name == name), None)
    if tool is None:
        names = ", ".join(each.name for each in TOOLS)
        raise ToolRefused(f"there is no tool {name!r}; there are {names}")
    # Assistants fill in what they leave out with null, or with nothing.
    texts = {key: _text(key, each) for key, each in given.items() if each not in (None, "")}
    try:
        limit = whole_positive(texts.pop("limit", str(sys.maxsize)))
    except argparse.ArgumentTypeError as error:
        raise ToolRefused(f"limit: {error}") from error
    takes = ", ".join([*tool.arguments, "limit"])
    for key in texts.keys() - tool.arguments.keys():
        raise ToolRefused(f"{name} has no argument {key!r}: it takes {takes}")
    if tool.needs is not None and tool.needs not in texts:
        raise ToolRefused(f"give {tool.needs}: {tool.arguments[tool.needs]}")
    for_less = f"ask for less with {takes}; the most urgent come first"
    return bounded(await tool.answer(servers, texts), limit, for_less)


def _text(name: str, value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float) else ""
    if not 0 < len(text) <= LONGEST_ARGUMENT or printable(text) != text:
        raise ToolRefused(f"{name} must be one line of at most {LONGEST_ARGUMENT} characters")
    return text
