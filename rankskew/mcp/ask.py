"""Runs a command of `rankskew` for a tool, and returns the document that it prints."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rankskew.mcp.bounded import Document, ToolRefused

# No assistant waits for more.
LONGEST_SECONDS: Final = 120.0
OURS: Final = "rankskew: "
# The others need a Prometheus.
OF_EXPORTERS: Final = ("top", "diagnose")


@dataclass(frozen=True, slots=True)
class AskedServers:
    """What the tools ask: a *prometheus*, of which only *cluster* if it is given, or *exporters*.

    *access* are the options that say how they are reached. An assistant chooses none of this, so it
    cannot send a token elsewhere.
    """

    prometheus: str | None = None
    exporters: tuple[str, ...] = ()
    cluster: str | None = None
    access: tuple[str, ...] = ()

    def options(self, command: str) -> list[str]:
        """Return them as options of *command*; raises ToolRefused if it needs a Prometheus."""
        if self.prometheus is not None:
            return [f"--prometheus={self.prometheus}", *self.access]
        if command not in OF_EXPORTERS:
            raise ToolRefused("this needs --prometheus, and rankskew mcp was started without it")
        return [*(f"--exporter={url}" for url in self.exporters), *self.access]


async def ask(servers: AskedServers, command: str, given: Mapping[str, str]) -> Document:
    """Return what *command* prints with the options *given*; raises ToolRefused.

    It runs in a process of its own: so a tool says exactly what the command says, large documents
    leave no memory behind, and whoever no longer waits ends it.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "rankskew", command, "--json"),
        *servers.options(command),
        *(f"--{name}={value}" for name, value in given.items()),
        stdin=DEVNULL,  # Ours may be the protocol's.
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), LONGEST_SECONDS)
    except TimeoutError as error:
        raise ToolRefused(f"rankskew {command} takes too long; ask about less") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = errors.decode(errors="replace").splitlines()
    said = " ".join(each.removeprefix(OURS) for each in lines if each.startswith(OURS))
    if not out and not said:
        print(*lines, sep="\n", file=sys.stderr)
        said = f"rankskew {command} failed; what rankskew mcp writes to stderr says why"
    found: dict[str, Any] = json.loads(out or "{}")
    # `top` shows what it could read, and what not in `troubles`.
    if said and not found.get("jobs"):
        raise ToolRefused(in_arguments(said, given))
    return found


def in_arguments(sentence: str, given: Collection[str]) -> str:
    """Return what a command says of its options as if they were arguments of a tool."""
    names = "|".join({*map(re.escape, given), "job", "cluster", "compare"})
    return re.sub(rf"(?:argument )?--({names})\b|; see rankskew \S+ --help$", r"\1", sentence)
