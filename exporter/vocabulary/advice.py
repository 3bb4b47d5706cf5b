"""What to do about each cause of a late rank, and in each other situation: alerts/advice.yaml."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import yaml

from exporter.bundle import bundled
from exporter.vocabulary.words import CAUSES, LOADER, REASONS, CauseWords, Reason

# What an action disturbs, the least first.
DISTURBS: Final = ("nothing", "neighbour", "rank", "restart", "node")
PLACEHOLDERS: Final = ("JOB", "RANK", "NODE", "PID", "GPU", "UUID")
DOCS: Final = "https://github.com/rankskew/rankskew/blob/main"
# Filled-in values may be copied into a shell, so only values like this are.
HARMLESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/-]*")
# Not within what the exporter has filled in: the UUID of a GPU begins with "GPU-".
_WORD: Final = re.compile(rf"(?<![\w-])({'|'.join(PLACEHOLDERS)})(?![\w-])")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do, which disturbs one of DISTURBS.

    It is for any of *details* of the cause, and for a rank that is late in any of *stages*; empty
    ones are for all.
    """

    do: str
    disturbs: str
    details: Sequence[str] = ()
    stages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """What a cause or a situation is, what to do, and what proves that it was this and is over.

    *alerts* are those that report it. A situation that is not *found* only says why nothing can be
    said about the job.
    """

    cause: str
    short: str
    text: str
    first: str
    actions: tuple[Action, ...]
    proof: str
    alerts: Sequence[str] = ()
    runbook: str = "RankskewStraggler"
    playbook: str | None = None
    found: bool = True

    def steps(self, detail: str | None, stage: str | None) -> list[Action]:
        """Return what to do for this detail and stage, the least disturbing first."""
        return [
            each
            for each in self.actions
            if (not each.details or detail in each.details)
            and (not each.stages or stage in each.stages)
        ]

    def links(self) -> list[str]:
        """Return where to read more: the section of the playbook, and the runbook."""
        section = [] if self.playbook is None else [f"{DOCS}/docs/playbook.md#{self.playbook}"]
        return [*section, f"{DOCS}/alerts/runbooks/{self.runbook}.md"]


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return *text* with its PLACEHOLDERS replaced by those *values* that are harmless.

    "GPU" is also a word: outside `code` it stays.
    """
    in_code = {name: value for name, value in values.items() if HARMLESS.fullmatch(value)}
    outside = {name: value for name, value in in_code.items() if name != "GPU"}

    def fill(part: str, known: Mapping[str, str]) -> str:
        return _WORD.sub(lambda found: known.get(found[1], found[1]), part)

    parts = enumerate(text.split("`"))
    return "`".join(fill(part, in_code if place % 2 else outside) for place, part in parts)


@cache
def advice() -> Mapping[str, Advice]:
    """Return the advice for each cause."""
    said = _entries("causes", CAUSES)
    return {cause: replace(entry, playbook=cause) for cause, entry in said.items()}


@cache
def situations() -> Mapping[str, Advice]:
    """Return the advice for what is not a late rank."""
    return _entries("situations", REASONS)


def for_alert(alert: str) -> Advice | None:
    """Return the advice for *alert*; for one about a late rank, that for a cause not known."""
    every = [*advice().values(), *situations().values()]
    return next((each for each in every if alert in each.alerts), None)


def _entries(part: str, words: Mapping[str, CauseWords | Reason]) -> Mapping[str, Advice]:
    """Return the entries of *part*; those in *words* take their short name and text from there."""
    said = yaml.load(bundled("alerts/advice.yaml").read_text(encoding="utf-8"), LOADER)
    found = {}
    for name, entry in said[part].items():
        known = {"short": words[name].short, "text": words[name].text} if name in words else {}
        known |= {"runbook": alerts[0]} if (alerts := entry.get("alerts")) else {}
        actions = tuple(Action(**each) for each in entry["actions"])
        found[name] = Advice(name, **known | entry | {"actions": actions})
    return found
