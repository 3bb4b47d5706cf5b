"""What to do about each cause of a late rank: reads alerts/advice.yaml."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import yaml

from exporter.bundle import bundled

# What an action disturbs, the least first.
DISTURBS: Final = ("nothing", "neighbour", "rank", "restart", "node")
PLACEHOLDERS: Final = ("JOB", "RANK", "NODE", "PID", "GPU", "UUID")
# What is filled in may be copied into a shell: only this is.
HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]*")
_WORD: Final = re.compile(rf"\b({'|'.join(PLACEHOLDERS)})\b")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, which disturbs one of DISTURBS.

    It is for any of *details* of the cause, and for a rank that is late in any of *stages*; empty
    ones are for all.
    """

    do: str
    disturbs: str
    details: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()

    def fits(self, detail: str | None, stage: str | None) -> bool:
        """Return whether it is for this detail of the cause and this stage."""
        return (not self.details or detail in self.details) and (
            not self.stages or stage in self.stages
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """What a cause is, what to do about it, and what shows that it was this one."""

    cause: str
    short: str
    text: str
    first: str
    actions: tuple[Action, ...]
    proof: str

    def steps(self, detail: str | None, stage: str | None) -> list[Action]:
        """Return what to do for this detail and stage, the least disturbing first."""
        return [action for action in self.actions if action.fits(detail, stage)]


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return *text* with the PLACEHOLDERS that have harmless *values* replaced by them."""
    good = {name: value for name, value in values.items() if HARMLESS.fullmatch(value)}
    return _WORD.sub(lambda found: good.get(found[1], found[1]), text)


@cache
def advice() -> Mapping[str, Advice]:
    """Return the advice for each cause. Raises ValueError for an entry that makes no sense."""
    said = yaml.safe_load(bundled("alerts/advice.yaml").read_text(encoding="utf-8"))
    return {cause: _advice(cause, entry) for cause, entry in said["causes"].items()}


def _advice(cause: str, entry: Mapping[str, Any]) -> Advice:
    try:
        actions = tuple(_action(each) for each in entry["actions"])
        return Advice(cause, **{**entry, "actions": actions})
    except (KeyError, TypeError) as error:
        raise ValueError(f"alerts/advice.yaml: {cause}: {error}") from error


def _action(entry: Mapping[str, Any]) -> Action:
    tuples = {name: tuple(entry.get(name, ())) for name in ("details", "stages")}
    return Action(**{**entry, **tuples})
