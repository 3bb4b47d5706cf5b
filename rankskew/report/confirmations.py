"""What people said of incidents: a file of JSON lines that only ever grows."""

import fcntl
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Final

from exporter.errors import StartError, reason
from rankskew.client.fields import mapping, number, text

YES, NO, UNSURE = "yes", "no", "unsure"
VERDICTS: Final = (YES, NO, UNSURE)
# 95 % of a normal distribution.
Z: Final = 1.959964


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


@dataclass(frozen=True, slots=True)
class Confirmations:
    """All *lines* of the file, the oldest first, and the numbers of those that cannot be read."""

    lines: Sequence[Confirmation]
    broken: Sequence[int] = ()

    @property
    def newest(self) -> dict[str, Confirmation]:
        """Return the confirmation that counts for each incident: the last line."""
        found: dict[str, Confirmation] = {}
        for each in self.lines:
            found.pop(each.incident, None)  # So that they are in the order of what counts.
            found[each.incident] = each
        return found

    def of(
        self, incident: str, alert: str, who: Mapping[str, str], begin: float, gap_seconds: float
    ) -> Confirmation | None:
        """Return the one that counts for *incident*, or for one like it that began about then.

        The begin, and so the id, depends a little on the step of the report.
        """
        newest = self.newest
        alike = [
            each
            for each in newest.values()
            if each.alert == alert and each.who == who and abs(each.began - begin) <= gap_seconds
        ]
        return newest.get(incident) or next(reversed(alike), None)


def default_file() -> Path:
    """Return the file in the user's directory for state (XDG_STATE_HOME), or here without one."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        state = os.path.expanduser("~/.local/state")
    # A user whom the system does not know, as in some containers, has no home.
    return Path(state if state.startswith("/") else ".") / "rankskew" / "confirmations.jsonl"


def read(path: Path) -> Confirmations:
    """Return what *path* says; a file that is not there says nothing. Raises StartError."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return Confirmations([])
    except OSError as error:
        raise StartError(f"cannot read {path}: {reason(error)}") from error
    found = {n: _parsed(line) for n, line in enumerate(lines, start=1) if line.strip()}
    good = [each for each in found.values() if each is not None]
    return Confirmations(good, [n for n, each in found.items() if each is None])


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


# ---- Precision ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Precision:
    """How many incidents people confirmed, refuted, were unsure of, and have not judged."""

    confirmed: int
    refuted: int
    unsure: int
    unjudged: int

    @property
    def ratio(self) -> float | None:
        """Return the share of the judged ones that were right; None without any."""
        judged = self.confirmed + self.refuted
        return self.confirmed / judged if judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the Wilson score interval of the ratio, 95 % (Wilson 1927)."""
        count = self.confirmed + self.refuted
        if not count:
            return None
        ratio, spread = self.confirmed / count, Z * Z / count
        middle = (ratio + spread / 2) / (1 + spread)
        half = sqrt(ratio * (1 - ratio) * Z * Z / count + spread * spread / 4) / (1 + spread)
        return max(0.0, middle - half), min(1.0, middle + half)


def precision(verdicts: Iterable[str | None]) -> Precision:
    """Count the *verdicts* on incidents, None for those without one."""
    found = list(verdicts)
    return Precision(*(found.count(verdict) for verdict in (YES, NO, UNSURE, None)))
