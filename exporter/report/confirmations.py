"""What people said of incidents: a file of JSON lines that only ever grows."""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from exporter.client.fields import mapping, number, text
from exporter.errors import StartError, reason

YES, NO, UNSURE = "yes", "no", "unsure"
VERDICTS: Final = (YES, NO, UNSURE)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What *by* said of *incident*, which was of *who* and began at *began*, in Unix seconds."""

    incident: str
    verdict: str
    alert: str
    who: Mapping[str, str]
    began: float
    at: float
    by: str = ""
    note: str = ""

    def is_of(self, alert: str, who: Mapping[str, str], begin: float, gap_seconds: float) -> bool:
        """Return whether it is of the incident that began about then.

        The begin depends a little on the step of the report.
        """
        same = (self.alert, dict(self.who)) == (alert, dict(who))
        return same and abs(self.began - begin) <= gap_seconds


@dataclass(frozen=True, slots=True)
class Said:
    """All *confirmations*, the oldest first, and the numbers of lines that cannot be read."""

    confirmations: Sequence[Confirmation]
    broken: Sequence[int] = ()

    @property
    def newest(self) -> dict[str, Confirmation]:
        """Return the confirmation that counts for each incident: the last line."""
        found: dict[str, Confirmation] = {}
        for each in self.confirmations:
            found.pop(each.incident, None)  # So that they are in the order of what counts.
            found[each.incident] = each
        return found


def default_file() -> Path:
    """Return the file in the user's directory for state (XDG_STATE_HOME), or here without one."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = os.path.expanduser("~/.local/state")
    # A user whom the system does not know, as in some containers, has no home.
    return Path(state if state.startswith("/") else ".") / "rankskew" / "confirmations.jsonl"


def read(path: Path) -> Said:
    """Return what *path* says; a file that is not there says nothing. Raises StartError."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return Said([])
    except OSError as error:
        raise StartError(f"cannot read {path}: {reason(error)}") from error
    found = {n: _parsed(line) for n, line in enumerate(lines, start=1) if line.strip()}
    good = [each for each in found.values() if each is not None]
    return Said(good, [n for n, each in found.items() if each is None])


def add(path: Path, confirmation: Confirmation) -> None:
    """Append *confirmation* to *path*, which others may append to as well; raises StartError."""
    line = json.dumps(asdict(confirmation), ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o664)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(file, _after_a_break(file) + line.encode())
            os.fsync(file)
        finally:
            os.close(file)  # This unlocks it too.
    except OSError as error:
        raise StartError(f"cannot write {path}: {reason(error)}") from error


def _after_a_break(file: int) -> bytes:
    """Return a line break if the last writer left half a line."""
    size = os.fstat(file).st_size
    return b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""


def _parsed(line: bytes) -> Confirmation | None:
    said: Mapping[str, Any] = {}
    with suppress(ValueError, RecursionError):
        said = mapping(json.loads(line))
    incident, verdict, alert = (text(said.get(n)) for n in ("incident", "verdict", "alert"))
    began, at = number(said.get("began")), number(said.get("at"))
    if not incident or verdict not in VERDICTS or not alert or began is None:
        return None
    who = {text(n) or "": text(v) or "" for n, v in mapping(said.get("who")).items()}
    by, note = text(said.get("by")) or "", text(said.get("note")) or ""
    return Confirmation(incident, verdict, alert, who, began, at or 0.0, by, note)
