"""The audit log: what was done and why, in JSON lines that only ever grow; also the memory."""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from exporter.errors import StartError, reason
from rankskew.act.model import Held, HeldNodes, Node, NodeAction
from rankskew.client.fields import mapping, number, text

# What an answer to an action, or its absence, is called.
FAILED: Final = "failed"
GONE: Final = "gone"
EVENTS: Final = (
    NodeAction.HOLD,
    NodeAction.FREE,
    NodeAction.WAIT,
    NodeAction.DISMISS,
    FAILED,
    GONE,
)


class AuditLog:
    """The file at *path*, of this process alone; raises StartError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o640)
        except OSError as error:
            raise StartError(f"cannot open {path}: {reason(error)}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise StartError(f"another rankskew act writes to {path}: stop it first") from error

    def close(self) -> None:
        """Let others have the file."""
        os.close(self._file)

    def add(self, line: Mapping[str, Any]) -> None:
        """Append *line*; it is on the disk when this returns. Raises StartError."""
        content = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            if os.write(self._file, content) != len(content):
                raise OSError("half of a line was written")
            os.fsync(self._file)
        except OSError as error:
            raise StartError(f"cannot write {self._path}: {reason(error)}") from error

    def lines(self) -> list[Mapping[str, Any]]:
        """Return what is written; raises StartError for a line that is not ours.

        A last line without its end is cut off: what it was about to say has not been done.
        """
        try:
            content = self._path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                os.truncate(self._file, len(whole))
        except OSError as error:
            raise StartError(f"cannot read {self._path}: {reason(error)}") from error
        return [self._parsed(n, each) for n, each in enumerate(whole.splitlines(), start=1)]

    def _parsed(self, n: int, line: bytes) -> Mapping[str, Any]:
        try:
            said = mapping(json.loads(line))
        except (ValueError, RecursionError):
            said = {}
        if said.get("event") not in EVENTS or number(said.get("time")) is None:
            raise StartError(
                f"{self._path}: line {n} is none of an audit log, and what is held may stand in "
                "it: mend it, or name another file with --audit"
            )
        return said


def restored(lines: Iterable[Mapping[str, Any]], target: str, for_real: bool) -> HeldNodes:
    """Return the state that *lines* leave of *target*, when it acted *for_real* or did not."""
    state = HeldNodes()
    for line in lines:
        if line.get("target") == target and line.get("for_real") is for_real:
            take(state, line)
    return state


def take(state: HeldNodes, line: Mapping[str, Any]) -> None:
    """Change *state* as *line* says, now or after a restart."""
    node = Node(text(line.get("cluster")) or "", text(line.get("instance")) or "")
    event, since = line["event"], number(line.get("since"))
    held = Held(text(line.get("name")) or "", line["time"] if since is None else since)
    # What cannot be freed is still held; what cannot be held is not.
    if event == NodeAction.HOLD or (event == FAILED and line.get("rule") == NodeAction.FREE):
        state.held[node] = held
        state.watched.pop(node, None)
        return
    if state.held.pop(node, None) and event != FAILED:
        state.freed[node] = line["time"]
    if event in (NodeAction.WAIT, FAILED):
        state.watched[node] = text(line.get("rule")) or ""
    else:
        state.watched.pop(node, None)
